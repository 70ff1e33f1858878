"""Observe a declared run: record it once, and once more to see whether it repeats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainguard.core.errors import SubjectError, Unjudged, is_ours
from trainguard.core.settings import Settings
from trainguard.curves.store import Archive, files_of
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.loop.curves import CurveProbe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.rerun import rerun
from trainguard.observe.loop.script_process import observe_script
from trainguard.observe.loop.ulp_perturbation import UlpPerturbation
from trainguard.observe.tools.isolation import deadline, isolate
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.loop import Loop, Run, Script
from trainguard.subjects.subject import parameters

_PROBES = ("run", "rerun", "curve")


def observe(run: Run, device: str, dtype: str, settings: Settings) -> "RunObservation":
    """Return the observation of a run; nothing runs until a trace is asked for."""
    return RunObservation(run, device, dtype, settings)


@dataclass
class RunObservation(SubjectObservation[Run, Event]):
    """The traces of one run: of the whole, and of its first steps made a second time."""

    of, probes = "a run", _PROBES

    archive: Archive | None = None  # of the curves; the files beside the declaration unless given

    def _observe_probe(self, probe: str) -> Trace[Event]:
        """Record what a probe asks for."""
        make = {"run": self._record, "rerun": self._record_again, "curve": self._compare_curves}
        return make[probe]()

    def _record(self) -> Trace[Event]:
        """Record the run as it was declared; one without a single step cannot be judged."""
        trace = self._of(self.subject.steps, self.subject.probe)
        self.points += len(trace)
        if not trace.conditions["steps"]:
            raise SubjectError(
                "it made no optimizer step", "declare what trains, not what sets a training up"
            )
        return trace

    def _record_again(self) -> Trace[Event]:
        """Record the first steps again from the same seed, and tell where the losses part."""
        trace, loop = self.trace("run"), self.subject
        if not isinstance(loop, Loop):
            raise Unjudged("a script seeds itself, or does not: run it twice to compare")
        return rerun(
            loop,
            trace,
            lambda steps, changed: self._of(steps, probe=False, changed=changed),
            self.settings.profile == "thorough",
        )

    def _compare_curves(self) -> Trace[Event]:
        """Hold the curves of the run against their snapshots."""
        assert isinstance(self.subject, Loop)
        steps = self.subject.steps
        again = CurveProbe(
            self.subject,
            self.trace("run"),
            self.archive or files_of(self.subject),
            lambda seed, nudge: self._of(steps, probe=False, seed=seed, nudge=nudge),
        )
        return again.compare()

    def _of(
        self,
        steps: int | None,
        probe: bool,
        seed: int | None = None,
        nudge: UlpPerturbation | None = None,
        changed: Mapping[str, Any] | None = None,
    ) -> Trace[Event]:
        """Record so many steps, the team's global state kept as it was."""
        run, promises = self.subject, self.subject.promises
        if isinstance(run, Script):
            return observe_script(run, self.settings, steps, probe)
        assert isinstance(run, Loop)
        arguments = {**run.arguments, **(changed or {})}
        if run.seeds and "seed" in (parameters(run.train) or ()):
            arguments["seed"] = seed or 0
        # A curve is that of one seed, whatever seed this session explores from.
        begin = seed or (0 if run.curve else self.settings.seed)
        recorder = Recorder(run.name, steps=steps, probe=probe, promises=promises, nudge=nudge)
        with isolate(begin), deadline(run.timeout):
            _train(recorder, lambda: run.train(**arguments))
        conditions = {**recorder.trace.conditions, "seed": begin}
        return replace(recorder.trace, conditions=conditions)


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
