"""The observation of a declared loop: recorded once, and its first steps once more."""

import random
from importlib import import_module

import pytest
import torch

import trainguard as tg
from fixtures.healthy.loop import guard_any_number_of_workers
from tests.observe.loop.trainings import plain
from trainguard.core.errors import DeclarationError, SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.observe.loop.observer import observe, rerun

ORDERED = """
import torch
from torch import nn
import trainguard as tg

WORDS = sorted({f"word {n}" for n in range(64)}, key=hash)  # another order in each process

def train():
    net = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.tensor([float(word[5:]) / 64 for word in WORDS])).square().sum().backward()
        optimizer.step()

loop = tg.Loop(train)
"""


def observed(loop: tg.Loop):
    """Return the observation of a loop."""
    return observe(loop, "cpu", "float32", Settings())


def test_a_loop_is_recorded_once() -> None:
    """Every invariant gets the same trace."""
    calls: list[int] = []

    def train() -> None:
        """Train, and count the call."""
        calls.append(1)
        plain(4)

    observation = observed(tg.Loop(train, steps=3))
    assert observation.trace("run") is observation.trace("run")
    assert calls == [1]
    assert sum(isinstance(event, Step) for event in observation.trace("run")) == 3


def test_a_loop_that_repeats_has_no_rerun_event() -> None:
    """Seeded alike, a second run has the same losses."""
    assert observed(tg.Loop(plain)).trace("rerun").events == ()


def test_a_loop_that_does_not_repeat_is_told_where() -> None:
    """The first step whose loss differs is the one measured."""
    clock = iter(range(100))

    def train() -> None:
        """Seed from something that is never the same."""
        plain(3)
        torch.manual_seed(next(clock))
        plain(3)

    (probe,) = observed(tg.Loop(train)).trace("rerun")
    assert isinstance(probe, Probe)
    assert (probe.measured, probe.reference) == (3.0, 6.0)


def noisy(num_workers: int = 0) -> None:
    """Train on what depends on the number of workers."""
    torch.manual_seed(num_workers)
    plain(3)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 0}, {"num_workers": 2}])
def test_a_loop_that_depends_on_its_workers_is_told(arguments: dict[str, int]) -> None:
    """Whatever number was declared, another one is tried."""
    (probe,) = observed(tg.Loop(noisy, arguments=arguments)).trace("rerun")
    assert isinstance(probe, Probe)
    assert (probe.probe, probe.measured, probe.reference) == ("workers", 0.0, 3.0)


def test_a_loop_is_begun_in_a_new_process_where_all_is_explored() -> None:
    """One that a module declares, which can be found again by its name."""
    thorough = Settings(profile="thorough")
    loop = guard_any_number_of_workers.loop
    assert observe(loop, "", "", thorough).trace("rerun").events == ()


def test_a_loop_whose_module_says_what_to_train_on_is_told(tmp_path, monkeypatch) -> None:
    """The order of a set of words is another one in each process."""
    module = tmp_path / "ordered_by_hash.py"
    module.write_text(ORDERED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    loop = import_module("ordered_by_hash").loop
    (probe,) = observe(loop, "", "", Settings(profile="thorough")).trace("rerun")
    assert isinstance(probe, Probe)
    assert probe.probe == "processes"


def test_a_new_process_that_fails_is_no_pass(tmp_path, monkeypatch) -> None:
    """What could not be run again was not judged."""
    module = tmp_path / "imported_once.py"
    module.write_text(ORDERED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    loop = import_module("imported_once").loop
    module.write_text("raise ImportError('not twice')", encoding="utf-8")
    with pytest.raises(Unjudged, match="in a new one it could not be run"):
        observe(loop, "", "", Settings(profile="thorough")).trace("rerun")


@pytest.mark.parametrize(
    ("conditions", "by", "parts"),
    [
        ({"device": "cpu"}, 1e-7, True),
        ({"device": "cuda", "deterministic": ("none",), "dtype": ("float32",)}, 1e-6, False),
        ({"device": "cuda", "deterministic": ("none",), "dtype": ("float32",)}, 1e-4, True),
        ({"device": "cuda", "deterministic": ("algorithms",), "dtype": ("float32",)}, 1e-6, True),
        ({"device": "cuda", "dtype": ("float32", "autocast-bfloat16")}, 5e-3, False),
        ({"device": "cuda", "dtype": ("float32", "autocast-bfloat16")}, 5e-2, True),
    ],
)
def test_sums_in_any_order(conditions, by, parts) -> None:
    """Kernels of a device may round otherwise each time, and all later steps follow from it."""

    def trace(*values: float) -> Trace:
        """Return a trace of steps with losses."""
        steps = tuple(Step(step=step, loss=loss) for step, loss in enumerate(values))
        return Trace("x", steps, conditions, {})

    again = trace(1.0, 2.0 * (1 + by), 3.0 if parts else 4.0)
    found = rerun(tg.Loop(plain), trace(1.0, 2.0, 3.0), lambda *_: again, thorough=False)
    assert [probe.step for probe in found] == [1] * parts


def test_the_state_of_the_team_is_kept() -> None:
    """Random streams, threads and grad mode are as they were."""
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(2), random.random()
    torch.manual_seed(3)
    random.seed(3)
    observed(tg.Loop(plain)).trace("run")
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]


def test_a_loop_without_a_step_cannot_be_judged() -> None:
    """It says so, and how to mend it."""
    with pytest.raises(SubjectError, match="it made no optimizer step"):
        observed(tg.Loop(lambda: None)).trace("run")


def test_what_a_loop_raises_is_its_own() -> None:
    """The error is the cause, and says after how many steps it came."""

    def train() -> None:
        """Break after two steps."""
        plain(2)
        raise KeyError("weights")

    with pytest.raises(SubjectError, match="it raised KeyError after 2 steps") as fault:
        observed(tg.Loop(train)).trace("run")
    assert isinstance(fault.value.__cause__, KeyError)


def test_a_loop_that_hangs_is_interrupted() -> None:
    """The limit is the declared one."""
    with pytest.raises(SubjectError, match=r"still running after 0\.3 seconds"):
        observed(tg.Loop(lambda: plain(10**9), timeout=0.3)).trace("run")


def test_an_unknown_probe_is_refused() -> None:
    """A team's own invariant may ask for one that does not exist."""
    with pytest.raises(DeclarationError, match="Did you mean 'rerun'"):
        observed(tg.Loop(plain)).trace("rerum")


def test_a_fault_of_ours_is_not_blamed_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a watcher raises in the middle of a training is told in the trace."""
    monkeypatch.setattr("trainguard.observe.loop.watch.runs.time_memory.perf_counter", None)
    (told,) = observed(tg.Loop(plain)).trace("run").conditions["faults"]
    assert told.startswith("TimeAndMemory was switched off: TypeError: ")
