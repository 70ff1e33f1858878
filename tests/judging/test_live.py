"""What is told while a run goes on is what a run that was stopped there is told."""

from dataclasses import replace

import pytest

from tests.test_matrix import judged, load
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.judge import Observations, applicable
from trainguard.judging.live import LiveJudge
from trainguard.judging.verdict import Config, Verdict
from trainguard.subjects.loop import Run

HEALTHY = (
    "guard_accumulation_divided",
    "guard_autocast",
    "guard_batch_grows",
    "guard_vector_evolved",
)


def looks(side: str, name: str) -> dict[str, int]:
    """Look at a fixture's training after each of its steps; return what was told, and when."""
    module, observations = load(side, f"loop/{name}"), Observations(Settings())
    first = next(v for v in judged(module, observations) if v.invariant.probe == "run")
    whole = observations.trace(first.subject, first.config, first.invariant)
    judge = LiveJudge(first.subject, Settings())
    for steps, end in enumerate([e.clock for e in whole if isinstance(e, Step)], 1):
        seen = tuple(e for e in whole if 0 < clock(e) <= end)
        judge.judge(steps, Trace(whole.subject, seen, {"steps": steps}, whole.promises))
    return {one.invariant.name: steps for steps, one in judge.told}


def clock(event: Event) -> int:
    """Return when an event was seen; 0 for what is added up at the end."""
    return getattr(event, "clock", 0)


def test_an_excuse_covers_what_was_told() -> None:
    """An excuse that the whole run would not need is no stale one; a second fault stays told."""
    run = Run(name="train")
    made = next(m for m, _ in applicable(run, Settings(), ()) if m.live)
    told = Verdict(run, made, Config(), "broken")
    judge = LiveJudge(run, Settings())
    judge.told.append((40, told))
    for whole, joined in (
        ("passed", "broken"),
        ("skipped", "broken"),
        ("stale", "excused"),
        ("excused", "excused"),
    ):
        (one,) = judge.merge([replace(told, outcome=whole, reason="on purpose")])
        assert one.outcome == joined
        assert joined == "broken" or one.reason == "on purpose"


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_beginning(name: str) -> None:
    """At no step of a healthy training is anything told."""
    assert looks("healthy", name) == {}
