"""Observe a declared run: record it once, and once more to see whether it repeats."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from trainguard.catalogue import Judge
from trainguard.event import Event
from trainguard.fault import DeclarationError, SubjectError, Unjudged, did_you_mean, is_ours
from trainguard.finding import Finding
from trainguard.loop import Loop, Run, Script
from trainguard.observe.deadline import deadline
from trainguard.observe.isolation import isolated
from trainguard.observe.recorder import Recorder
from trainguard.observe.script import observe_script
from trainguard.settings import Settings
from trainguard.step import Probe, Step
from trainguard.trace import Trace

_COMPARED = 8  # steps of the second run
_PROBES = ("run", "rerun")


def observe(run: Run, _device: str, _dtype: str, settings: Settings) -> "RunObservation":
    """Return the observation of a run; nothing runs until a trace is asked for."""
    return RunObservation(run, settings)


@dataclass
class RunObservation:
    """The traces of one run: of the whole, and of its first steps made a second time."""

    run: Run
    settings: Settings
    points: int = 0
    _traces: dict[str, Trace[Event] | Exception] = field(default_factory=dict)

    def trace(self, probe: str) -> Trace[Event]:
        """Return the trace of one probe, recorded at the first call."""
        if probe not in _PROBES:
            raise DeclarationError(f"Runs have no probe {probe!r}.{did_you_mean(probe, _PROBES)}")
        if probe not in self._traces:
            try:
                self._traces[probe] = self._recorded() if probe == "run" else self._repeated()
            except Exception as fault:  # noqa: BLE001 raised again for each invariant, as it is
                self._traces[probe] = fault
        kept = self._traces[probe]
        if not isinstance(kept, Trace):
            raise kept
        return kept

    def shrunk(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding: a run has no smaller counterexample than its first step."""
        return finding

    def _recorded(self) -> Trace[Event]:
        """Record the run as it was declared; one without a single step cannot be judged."""
        trace = self._of(self.run.steps, self.run.probe)
        self.points += len(trace)
        if not trace.conditions["steps"]:
            raise SubjectError(
                "it made no optimizer step", "declare what trains, not what sets a training up"
            )
        return trace

    def _repeated(self) -> Trace[Event]:
        """Record the first steps again from the same seed, and tell where the losses part."""
        first = _losses(self.trace("run"))
        if isinstance(self.run, Script):
            raise Unjudged("a script seeds itself, or does not: run it twice to compare")
        second = _losses(self._of(min(_COMPARED, len(first)), probe=False))
        pairs = list(zip(first, second, strict=False))
        parted = [i for i, (a, b) in enumerate(pairs) if a != b and not (isnan(a) and isnan(b))]
        events = []
        if parted:
            a, b = pairs[parted[0]]
            events = [
                Probe(
                    probe="rerun",
                    measured=float(parted[0]),
                    reference=float(len(pairs)),
                    step=parted[0],
                    label=f"{a!r} against {b!r}",
                )
            ]
        return Trace(self.run.name, tuple(events), {}, self.run.promises)

    def _of(self, steps: int | None, probe: bool) -> Trace[Event]:
        """Record so many steps, the team's global state kept as it was."""
        if isinstance(self.run, Script):
            return observe_script(self.run, self.settings, steps, probe)
        assert isinstance(self.run, Loop)
        train, arguments = self.run.train, dict(self.run.arguments)
        recorder = Recorder(self.run.name, steps=steps, probe=probe, promises=self.run.promises)
        with isolated(self.settings.seed), deadline(self.run.timeout):
            _train(recorder, lambda: train(**arguments))
        return recorder.trace


def _train(recorder: Recorder, train: Callable[[], Any]) -> None:
    """Run the training under the recorder; what it raises is the subject's own."""
    try:
        with recorder:
            train()
    except Exception as error:
        if is_ours(error):
            raise
        raise SubjectError(
            f"it raised {type(error).__name__} after {recorder.steps} steps: {error}",
            "make it run by itself first",
        ) from error


def _losses(trace: Trace[Event]) -> list[float]:
    """Return the losses of the first steps, in the order in which they were made."""
    return [event.loss for event in trace if isinstance(event, Step)][:_COMPARED]
