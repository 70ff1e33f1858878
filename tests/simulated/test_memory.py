"""Memory is told of the device that a training is on, and so are curves."""

import re

import pytest
import torch
from torch import nn

import trainguard as tg
from tests.observe.memory import growing, lasting
from tests.observe.memory.stacks import stack
from tests.observe.memory.test_growth import followed
from tests.simulated.trainings import regression
from trainguard.core.catalogue import find_invariants
from trainguard.core.settings import Settings
from trainguard.events.loop import Step
from trainguard.invariants.memory.growth import memory_does_not_grow
from trainguard.judging.judge import Observations, verdict
from trainguard.judging.verdict import Config
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.memory.run_call import silence


def record(device: str):
    """Return the trace of a short training."""
    with Recorder("regression", probe=False) as recorder:
        regression(device, 12, lambda: None)
    return recorder.trace


def test_the_memory_of_a_step_is_that_of_its_device(device):
    """Megabytes held elsewhere, on the host or on the other device, are not in the row."""
    other = "sim:0" if device == "sim:1" else "sim:1"
    held = [torch.zeros(10**6, device=other), torch.zeros(10**6)]
    before = torch.sim.memory_allocated(device)
    memory = [event.memory for event in record(device).events if isinstance(event, Step)]
    del held
    assert max(memory) - before < 10**5
    assert max(memory) > before


def test_memory_that_is_kept_shows(device):
    """What a training keeps of each step is in the row of its device."""
    kept = []
    net = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("keeps", probe=False) as recorder:
        for _ in range(8):
            optimizer.zero_grad()
            net(torch.ones(4, 8, device=device)).square().mean().backward()
            optimizer.step()
            kept.append(torch.zeros(10**5, device=device))
    memory = [event.memory for event in recorder.trace.events if isinstance(event, Step)]
    assert memory[7] - memory[1] == pytest.approx(6 * 4 * 10**5, abs=10**4)


def test_curves_are_kept_by_device(device):
    """The conditions of a run, by which its snapshot is chosen, name the type of device."""
    conditions = record(device).conditions
    assert conditions["device"] == "sim"
    assert conditions["hardware"] == "simulated accelerator"


def test_a_snapshot_is_of_a_device(device):
    """The file that is looked for has the type of device in its name."""
    loop = tg.Loop(lambda: regression(device, 12, lambda: None), name="regression", curve="loss")
    with pytest.raises(tg.Broken, match=r"\[loss-sim\]\.curve"):
        tg.check(loop, select=["curve_matches_snapshot"])


@pytest.mark.parametrize(
    ("budget", "invariant", "outcome"),
    [
        (tg.Budget(peak="64 MiB", at={"B": 8, "T": 512}), "peak_is_within_budget", "passed"),
        (tg.Budget(peak="64 KiB", at={"B": 8, "T": 512}), "peak_is_within_budget", "broken"),
        (tg.Budget(headroom="10 %", at={"B": 8, "T": 512}), "headroom_is_kept", "passed"),
        (tg.Budget(headroom="99.99 %", at={"B": 8, "T": 512}), "headroom_is_kept", "broken"),
    ],
)
def test_a_peak_is_counted_on_the_device(device, budget, invariant, outcome):
    """A budget is held against what the allocator counted, which is near what was predicted."""
    (made,) = find_invariants(f"memory.{invariant}")
    torch.sim.reset_peak_memory_stats(device)
    before = torch.sim.max_memory_allocated(device)
    judged = verdict(
        stack(budget, written_out=True), made, Config(device, "float32"), Observations(Settings())
    )
    assert judged.outcome == outcome
    assert torch.sim.max_memory_allocated(device) > before
    for finding in judged.findings:
        assert "measured on simulated accelerator" in finding.measured
    if invariant == "peak_is_within_budget" and judged.findings:
        off = re.search(r"([-+][\d.]+)% against", str(judged.findings[0].measured))
        assert abs(float(off[1])) < 5


@pytest.fixture
def on_device(device):
    """Make all tensors on a device that do not say where."""
    torch.set_default_device(device)
    with silence():
        yield device
    torch.set_default_device(None)


HELD_BY_PYTHON = {"arrays_kept", "words_kept", "chunks_kept"}  # a device has no part in it
LASTING = (lasting.adam, lasting.deque_fills_up, lasting.windows_cached)
ON_DEVICES = sorted(growing.GROWING.keys() - HELD_BY_PYTHON)


@pytest.mark.parametrize("name", ON_DEVICES)
def test_what_grows_on_a_device_is_found(name, on_device):
    """Each is broken within ten steps, and the finding names the device."""
    train, keeper = growing.GROWING[name]
    follower, trace = followed(train)
    (finding,) = memory_does_not_grow(trace)
    assert keeper in finding.why
    first = follower.told[0]
    assert first.how.startswith("measured on sim over ") or not first.measured


@pytest.mark.parametrize("train", LASTING, ids=lambda train: train.__name__)
def test_what_does_not_grow_on_a_device_is_not(train, on_device):
    """What fills up to a bound is neither broken nor a note."""
    assert list(memory_does_not_grow(followed(train)[1])) == []
