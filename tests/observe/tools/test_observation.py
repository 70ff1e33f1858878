"""The traces of one observation, and what stopped those that there are not."""

import pytest

from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.trace import Tick, Trace
from trainguard.observe.tools.observation import Traces


def traced(probe: str) -> Trace[Tick]:
    """Return a trace of one tick."""
    return Trace(probe, (Tick(case=0, step=0, phase="run", rates=(0.1,)),))


def test_a_probe_runs_once() -> None:
    """Another invariant judges the same trace."""
    asked = []
    traces = Traces[Tick]("a schedule", ("run", "resume"))

    def observed(probe: str) -> Trace[Tick]:
        """Remember what was asked for."""
        asked.append(probe)
        return traced(probe)

    assert traces.get("run", observed) is traces.get("run", observed)
    assert asked == ["run"]


@pytest.mark.parametrize("fault", [SubjectError("it hangs"), RuntimeError("a mistake of ours")])
def test_what_stopped_a_probe_is_raised_each_time(fault) -> None:
    """The team's code is not run again to see whether it fails once more."""
    asked = []
    traces = Traces[Tick]("a schedule", ("run",))

    def observed(probe: str) -> Trace[Tick]:
        """Fail."""
        asked.append(probe)
        raise fault

    for _ in range(2):
        with pytest.raises(type(fault), match=str(fault)):
            traces.get("run", observed)
    assert asked == ["run"]


def test_a_misspelled_probe() -> None:
    """The name that was meant is told."""
    told = "There is no probe 'rum' of a schedule. Did you mean 'run'"
    with pytest.raises(DeclarationError, match=told):
        Traces[Tick]("a schedule", ("run", "resume")).get("rum", traced)


def test_the_probe_of_a_finding() -> None:
    """It is the one whose trace holds the very event, not one that is equal to it."""
    traces = Traces[Tick]("a schedule", ("run", "resume"))
    (tick,) = traces.get("run", traced)
    (other,) = traces.get("resume", traced)
    assert tick == other

    def found(event: Event | None) -> str | None:
        """Return the probe of a finding about an event."""
        return traces.probe_of(Finding("it rises", "step 0", "1", "0", event=event))

    assert [found(tick), found(other), found(None)] == ["run", "resume", None]
