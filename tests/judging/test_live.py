"""What is told while a run goes on is what a run that was stopped there is told."""

import pytest

from tests.test_matrix import judged, load
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.judge import Observations
from trainguard.judging.live import LiveJudge

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


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_beginning(name: str) -> None:
    """At no step of a healthy training is anything told."""
    assert looks("healthy", name) == {}
