"""The probe of a step: peaks, categories, steps that end early, and where there is no CUDA."""

import pytest
import torch
from torch import nn

import trainguard as tg
from tests.observe.memory.stacks import hungry, judged, stack
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, verdict
from trainguard.judging.verdict import Config
from trainguard.observe.memory.allocation_log import AllocationLog, MemoryExceeded
from trainguard.observe.memory.events import Stop, events, stop_of
from trainguard.observe.memory.timeline import Timeline
from trainguard.report.text import render_verdict


def test_a_peak_that_is_within_its_budget_and_one_that_is_not() -> None:
    """What was measured is enough, and the finding names the module and the categories."""
    seen = judged(stack(tg.Budget(peak=1, at={"T": 64})), "peak_is_within_budget")
    peak = int(seen.findings[0].event.measured)
    assert "at the peak: " in render_verdict(seen)
    assert "backward of `Stack" in render_verdict(seen)
    assert judged(
        stack(tg.Budget(peak=peak, at={"T": 64})), "peak_is_within_budget"
    ).outcome == "passed"  # fmt: skip


def test_a_category_at_the_sizes_of_the_budget() -> None:
    """Parameters are counted to the block of 512 bytes in which each tensor lies."""
    held = 1024 + 3 * 512  # 24 x 8 and 8 x 8 floats, and two biases
    for limit, outcome in ((held, "passed"), (held - 512, "broken")):
        budget = tg.Budget(parameters=limit)
        assert judged(stack(budget), "category_is_within_budget").outcome == outcome


def test_what_the_allocator_refuses_is_a_finding() -> None:
    """The step ran out of memory, and says with what it held by then."""
    seen = judged(hungry(tg.Budget(peak="900 TiB"), 1 << 30), "peak_is_within_budget")
    assert seen.findings[0].summary == "a training step of `hungry` runs out of memory"
    assert "it was refused 1,024.00 TiB more while it held" in seen.findings[0].why
    assert "at least 1,024.00 TiB" in render_verdict(seen)


def test_a_step_that_is_stopped_above_its_budget() -> None:
    """It is broken, at the least by so much, and the machine is left its memory."""
    budget = tg.Budget(peak="1 MiB", parameters="1 MiB")
    subject = hungry(budget, 256, 64)
    seen = judged(subject, "peak_is_within_budget")
    assert seen.findings[0].measured.startswith("at least 1.00 GiB")
    assert judged(subject, "category_is_within_budget").outcome == "skipped"


def test_a_step_that_is_stopped_below_its_budget(monkeypatch) -> None:
    """Nothing is known: the subject could not be observed, and it says why."""
    monkeypatch.setattr("trainguard.observe.memory.step.available_share", lambda: 1e8)
    monkeypatch.setattr("trainguard.observe.memory.predict.available_share", lambda: 1e8)
    with pytest.raises(SubjectError, match="does not fit on this machine, where it was stopped at"):
        judged(hungry(tg.Budget(peak="1 TiB"), 64, 9), "peak_is_within_budget")
    with pytest.raises(SubjectError, match="could not be predicted: on fake tensors it raised"):
        judged(hungry(tg.Budget(activations="1 TiB"), 64, 9), "category_is_within_budget")


@pytest.mark.parametrize(
    ("error", "stop"),
    [
        (MemoryExceeded("9 bytes"), Stop(refused=False, held=5)),
        (MemoryError(), Stop(refused=True, held=5)),
        (
            torch.cuda.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has"
            ),
            Stop(refused=True, held=5, asked=3 << 29),
        ),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes"
            ),
            Stop(refused=True, held=5, asked=7),
        ),
        (RuntimeError("a size does not fit"), None),
        (ValueError("out of memory"), None),
    ],
)
def test_what_a_lack_of_memory_looks_like(error: Exception, stop: Stop | None) -> None:
    """By kind or by torch's own words, also where it is the cause of another error."""
    assert stop_of(error, 5) == stop
    wrapped = SubjectError("it raised")
    wrapped.__cause__ = error
    assert stop_of(wrapped, 5) == stop


def test_a_model_on_the_wrong_device() -> None:
    """What it raises is told as its own fault, and the run goes on."""

    class Elsewhere(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Add something that is on another device."""
            return super().forward(x) + torch.zeros(4, device="meta")

    model = tg.Model(
        lambda: Elsewhere(4, 4), x=tg.real("B 4", -1, 1), budget=tg.Budget(peak="1 MiB"), name="net"
    )
    with pytest.raises(SubjectError, match="it raised RuntimeError: .*(device|meta)"):
        judged(model, "peak_is_within_budget")


def test_a_step_that_allocates_nothing() -> None:
    """There is nothing to hold against a budget, which is a fault of the subject."""
    nothing = tg.Loss(lambda x: x, x=tg.real("B", 0, 1), sizes={"B": 1}, name="nothing",
                      budget=tg.Budget(peak="1 MiB"))  # fmt: skip
    assert judged(nothing, "peak_is_within_budget").outcome == "passed"  # its input is something
    with pytest.raises(SubjectError, match="its step allocates nothing"):
        list(events(Timeline(AllocationLog()), "", (), ""))


def test_headroom_without_cuda() -> None:
    """It is skipped with a sentence."""
    if torch.cuda.is_available():
        pytest.skip("CUDA is present here")
    seen = judged(stack(tg.Budget(headroom="10 %")), "headroom_is_kept")
    assert (seen.outcome, seen.reason) == (
        "skipped",
        "headroom is measured on CUDA or its like, which is not present here",
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not present here")
def test_counters_of_cuda() -> None:
    """The allocator's peak is near the prediction, and a device is not filled by this."""
    seen = judged(stack(tg.Budget(headroom="10 %", at={"T": 4096})), "headroom_is_kept")
    assert seen.outcome == "passed"
    (made,) = find_invariants("memory.peak_is_within_budget")
    budget = tg.Budget(peak=1, at={"B": 64, "T": 4096})
    measured = verdict(stack(budget), made, Config("cuda", "float32"), Observations(Settings()))
    assert "against" in measured.findings[0].measured
