"""Steps of real processes: what is compared, what cannot be, and who fails or hangs."""

import os
import signal
import time
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace
from trainguard.observe.parallel.observer import observe
from trainguard.observe.ranks import processes

INPUTS = {"inputs": tg.real("B 8", -1, 1), "targets": tg.real("B 1", -1, 1)}


def watch(build: Any, **options: Any) -> Trace[Any]:
    """Return the trace of a step with one batch."""
    if "step" not in options:
        options["loss"] = loss
    renamed = {"input": INPUTS["inputs"], "target": INPUTS["targets"]}
    subject = tg.Parallel(build, inputs=renamed, **options)
    return observe(subject, "cpu", "float32", Settings(profile="quick")).trace("step")


def loss(output: Any, target: Any) -> Any:
    """Return the mean square."""
    return nn.functional.mse_loss(output, target)


def build() -> nn.Module:
    """Return a layer."""
    return nn.Sequential(nn.Linear(8, 1))


def test_two_processes_are_as_one() -> None:
    """A loss, two gradients and two updates, alike to rounding; the names are those of the team."""
    events = list(watch(build))
    assert [e.quantity for e in events] == ["loss", *["gradient"] * 2, *["update"] * 2]
    assert [e.place for e in events[1:3]] == ["0.weight", "0.bias"]
    assert all(e.apart < 1e-5 for e in events)


STARTED = tg.Parallel(
    build, loss=loss, inputs={"input": INPUTS["inputs"], "target": INPUTS["targets"]}
)


def test_processes_that_are_started(monkeypatch) -> None:
    """Where none can be forked, new ones find what was declared, and come to the same."""
    forked = watch(build)
    monkeypatch.setattr(processes, "forks", lambda: False)
    again = observe(STARTED, "cpu", "float32", Settings(profile="quick")).trace("step")
    assert list(again) == list(forked)
    with pytest.raises(Unjudged, match="new ones do not find it"):
        watch(build)


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [("hpu", Unjudged, "2 processes take a hpu device each, and"), ("gpu", SubjectError, "gpu")],
)
def test_devices_that_are_not_here(kind, error, told) -> None:
    """One sentence, and no process is made."""
    with pytest.raises(error, match=told):
        watch(build, devices=kind)


def mean_of_rank(output: Any, target: Any) -> Any:
    """Return the mean over the rows of this process: of means, where the counts are unequal."""
    return loss(output, target)


def test_the_smallest_split_that_fails() -> None:
    """Even parts are alike; of unequal ones three rows are the fewest, of the least length."""
    inputs = {"input": tg.real("B T 8", -1, 1), "target": tg.real("B T 1", -1, 1)}
    options: Any = {"inputs": inputs, "sizes": {"T": (1, 5)}, "ranks": (1, 2, 3)}
    settings = Settings(profile="ci")
    even = tg.Parallel(build, loss=mean_of_rank, **options)
    (made,) = find_invariants("parallel.gradients_equal_one_process")
    even_trace = observe(even, "cpu", "float32", settings).trace("step")
    assert list(made.judge(even_trace)) == []
    assert len({event.case for event in even_trace}) > 5
    uneven = tg.Parallel(build, loss=mean_of_rank, uneven=True, **options)
    observation = observe(uneven, "cpu", "float32", settings)
    (finding,) = made.judge(observation.trace("step"))
    found = observation.shrink(finding, made.judge)
    assert found.smallest == "ranks=2, sizes={'B': 3, 'T': 1}, cut into 1, 2 rows"
    assert found.event.world == 2


def test_dropout_is_not_compared() -> None:
    """Each rank draws masks of its own."""
    with pytest.raises(Unjudged, match="draws random numbers"):
        watch(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)))


def test_statistics_of_each_rank_are_seen() -> None:
    """BatchNorm under DDP takes those of its own rows."""
    events = list(watch(lambda: nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1))))
    assert all(e.lone_statistics for e in events[1:])


def test_a_torch_that_is_too_old(monkeypatch) -> None:
    """One sentence, and the way out, before any process is made."""
    monkeypatch.delattr(fsdp, "fully_shard", raising=False)
    with pytest.raises(SubjectError, match=r'"fully_shard", which torch .* lacks'):
        watch(build, wrap="fully_shard")


def test_a_step_that_goes_nowhere() -> None:
    """Without a gradient on one process there is nothing to compare."""
    with pytest.raises(SubjectError, match="has no gradient on one process"):
        watch(build, wrap=None, step=lambda model, batch: model(batch["input"]).mean().detach())


def fail_on_second(model: Any, batch: Any) -> Any:
    """Raise on rank 1 alone."""
    if dist.get_rank() == 1:
        raise ValueError("too short")
    value = loss(model(batch["input"]), batch["target"])
    value.backward()
    return value


def die_on_second(model: Any, batch: Any) -> Any:
    """End rank 1 without a word, and let the others wait."""
    if dist.get_rank() == 1:
        os._exit(7)
    time.sleep(30 * (dist.get_world_size() - 1))
    return fail_on_second(model, batch)


def kill_second(model: Any, batch: Any) -> Any:
    """Kill rank 1, as a machine without memory does."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return fail_on_second(model, batch)


def hang_on_second(model: Any, batch: Any) -> Any:
    """Keep rank 1 busy, and let the others be done."""
    if dist.get_rank() == 1:
        time.sleep(30)
    return fail_on_second(model, batch)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (fail_on_second, "rank 1 of 2 raised ValueError: too short"),
        (die_on_second, "rank 1 of 2 ended without a word"),
        (kill_second, "rank 1 of 2 was ended by SIGKILL"),
    ],
)
def test_a_rank_that_fails_is_named(step: Any, told: str) -> None:
    """By the first one that has ended."""
    with pytest.raises(SubjectError, match=told):
        watch(build, step=step)


def test_ranks_that_hang_are_named() -> None:
    """All that were still running: who waits cannot be told from who is waited for."""
    with pytest.raises(SubjectError, match=r"rank .*1 of 2 was still running after 3 seconds"):
        watch(build, step=hang_on_second, timeout=3.0)
