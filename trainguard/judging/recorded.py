"""Judge a run that is over by its trace."""

from dataclasses import dataclass
from typing import Any

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.judge import Observations, applicable, check_excuses_apply, verdict
from trainguard.judging.variant import Config
from trainguard.judging.verdict import Verdict
from trainguard.subjects.loop import Run


@dataclass(slots=True)
class Finished:
    """The observation of a run that is over: its trace is all that can be asked for."""

    recorded: Trace[Any]
    points: int

    def trace(self, probe: str) -> Trace[Any]:
        """Return the trace, or say that the run would have to be made again."""
        if probe != "run":
            raise Unjudged(f"a run that is over has no probe {probe!r}")
        return self.recorded

    def shrink(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding as it is: a run that is over cannot be made smaller."""
        return finding


def judge_run(
    run: Run, trace: Trace[Any], settings: Settings, rerun: str = "", silence: str = ""
) -> tuple[Verdict, ...]:
    """Judge a trace that is already there, by all that applies to it and needs no second run."""
    check_excuses_apply(run, ())
    chosen = [made for made, _ in applicable(run, settings, ()) if made.probe == "run"]
    observations = Observations(settings)
    observations.keep(run, Config(), Finished(trace, len(trace)))
    return tuple(verdict(run, made, Config(), observations, rerun, silence) for made in chosen)


def check_steps(run: Run, trace: Trace[Any]) -> None:
    """Raise SubjectError for a trace without a training step: it would pass everything."""
    if not any(isinstance(event, Step) for event in trace):
        raise SubjectError(
            f"`{run.name}` made no training step, so that there is nothing to judge",
            "Steps in processes that it starts are not seen.",
        )
