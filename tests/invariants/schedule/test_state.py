"""The judges that compare drives: resumed ones, and ones without a scheduler."""

from dataclasses import replace

import pytest

from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Tick

RATES = [1 - step / 100 for step in range(100)]


@pytest.fixture
def resumed(ticks):
    """Write the second half of a run as it went after a resume at step 50."""

    def written(rates: list[float], phase: str = "resumed") -> list[Tick]:
        return [*ticks(RATES), *ticks(rates, phase, first=50, label="saved at step 50")]

    return written


def test_a_resume_that_continues_is_passed(judged, resumed) -> None:
    """The same rates as without the interruption give nothing."""
    assert judged("resume_continues_the_schedule", resumed(RATES[50:])) == []


@pytest.mark.parametrize(("phase", "why"), [("resumed", "not saved"), ("rebuilt", "no state_dict")])
def test_a_resume_that_starts_over_is_found(phase: str, why: str, judged, resumed) -> None:
    """The message says where the run was saved, and whether there was a state at all."""
    (finding,) = judged("resume_continues_the_schedule", resumed(RATES[:50], phase))
    assert finding.at == "step 50, saved at step 50"
    assert why in finding.why


def test_a_count_that_a_training_may_advance_anew_is_a_note(judged, resumed) -> None:
    """Without a state_dict, a schedule of steps can be caught up with; a rule of metrics cannot."""
    (finding,) = judged("resume_continues_the_schedule", resumed(RATES[:50], "rebuilt"))
    assert finding.rank is Rank.NOTE
    fed = [replace(tick, metric=1.0) for tick in resumed(RATES[:50], "rebuilt")]
    (finding,) = judged("resume_continues_the_schedule", fed)
    assert finding.rank is Rank.BROKEN


@pytest.mark.parametrize("phase", ["unsaved", "unloaded"])
def test_a_state_that_cannot_make_the_round_trip_is_found(phase: str, judged, ticks) -> None:
    """What was raised while saving or loading is what was measured."""
    events = [*ticks(RATES), Tick(phase=phase, step=50, rates=(), label="PicklingError: no")]
    (finding,) = judged("resume_continues_the_schedule", events)
    assert finding.measured == "PicklingError: no"


@pytest.fixture
def ablation(judged, ticks):
    """Judge what scheduler A does beside another one, at a rate of 1 where none is stepped."""

    def judge(together: list[float], without: list[float], alone: list[float]) -> list[Finding]:
        events = ticks(together, "together") + ticks([1.0] * len(together), "still")
        events += ticks(alone, "alone", label="A") + ticks(without, "without", label="A")
        return judged("schedulers_do_not_fight", events)

    return judge


def test_a_scheduler_that_is_written_over_is_found(ablation) -> None:
    """The run is the same without it, although it moves the rate on its own."""
    (finding,) = ablation([0.9] * 9, without=[0.9] * 9, alone=[0.5] * 9)
    assert "A" in finding.summary


@pytest.mark.parametrize(
    ("together", "without", "alone"),
    [
        ([0.45] * 9, [0.9] * 9, [0.5] * 9),
        ([0.9] * 9, [0.9] * 9, [1.0] * 9),
        ([0.9] * 9, [0.9] * 9, [0.995] * 9),
        ([0.5] * 9, [0.5] * 9, [0.5] * 9),
    ],
    ids=["multiplies", "does nothing", "hardly moves", "agrees"],
)
def test_schedulers_that_get_along(
    together: list[float], without: list[float], alone: list[float], ablation
) -> None:
    """Schedulers that multiply, rest or agree do not fight."""
    assert ablation(together, without, alone) == []
