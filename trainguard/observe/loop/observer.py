"""Observe a declared run: record it once, and once more to see whether it repeats."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isclose, isnan
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError, Unjudged, is_ours
from trainguard.core.settings import Settings
from trainguard.curves.store import Archive
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.observe.loop.curves import CurveProbe, UlpPerturbation, files_of
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.run_processes import observe_apart, observe_script
from trainguard.observe.ranks.processes import observe_processes
from trainguard.observe.tools.isolation import deadline, isolate
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.loop import Loop, Run, Script
from trainguard.subjects.subject import parameters, variable_of

_PROBES = ("run", "rerun", "curve")
COMPARED = 8  # steps of each further run
# Of a loss, where sums are in any order: eps times the square root of how many numbers are added.
_ROUNDED, _ROUNDED_16 = 1e-5, 1e-2  # 30 thousand of float32; a few of bfloat16
_WORKERS = (0, 2)  # numbers of worker processes that are compared with what was declared
_ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Record = Callable[[int, Mapping[str, Any]], Trace[Event]]


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
        if probe != "run" and self.subject.processes > 1:
            raise Unjudged("it is made of several processes, and not begun again")
        make = {"run": self._record, "rerun": self._record_again, "curve": self._compare_curves}
        return make[probe]()

    def _record(self) -> Trace[Event]:
        """Record the run as it was declared; one without a single step cannot be judged."""
        if self.subject.processes > 1:
            first: Trace[Event] = observe_processes(
                self.subject, self.settings.seed, self.subject.processes
            )[0]
            self.points += len(first)
            return first
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
        recorder = Recorder(
            run.name,
            steps=steps,
            probe=probe,
            promises=promises,
            nudge=nudge,
            relations=run.relations,
            thorough=self.settings.profile == "thorough",
        )
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


def rerun(loop: Loop, trace: Trace[Event], record: Record, thorough: bool) -> Trace[Event]:
    """
    Return what differs when a recorded run is begun again.

    record: makes so many of its first steps again in this process, with some arguments changed.
    thorough: whether to begin it in a new process too, which takes a while to start.
    """
    first = losses(trace)
    near = _rounding(trace)
    found = [*_find_parting("rerun", first, losses(record(len(first), {})), near)]
    if not found:
        found += _with_workers(loop, first, record, near)
    if thorough and not found:
        found += _in_a_new_process(loop, trace, first, near)
    return Trace(loop.name, tuple(found), {}, loop.promises)


def _rounding(trace: Trace[Event]) -> float:
    """Return by which share losses may differ: on the CPU not at all, elsewhere sums may be."""
    conditions = trace.conditions
    exact = "algorithms" in _words(conditions.get("deterministic"))
    if exact or conditions.get("device", "cpu") == "cpu":
        return 0.0
    low = any("16" in dtype for dtype in _words(conditions.get("dtype")))
    return _ROUNDED_16 if low else _ROUNDED


def _words(value: Any) -> tuple[str, ...]:
    """Return the words of a condition, none where it was not seen."""
    return value if isinstance(value, tuple) else ()


def losses(trace: Trace[Event]) -> list[float]:
    """Return the losses of the first steps, in the order in which they were made."""
    return [event.loss for event in trace if isinstance(event, Step)][:COMPARED]


def _with_workers(
    loop: Loop, first: Sequence[float], record: Record, near: float
) -> Iterator[Probe]:
    """Yield a probe where the number of workers, which the function takes, changes the losses."""
    if "num_workers" not in (parameters(loop.train) or ()):
        return
    for number in _WORKERS:
        if number == loop.arguments.get("num_workers"):
            continue
        again = losses(record(len(first), {"num_workers": number}))
        found = [*_find_parting("workers", first, again, near)]
        if found:
            yield from found
            return


def _in_a_new_process(
    loop: Loop, trace: Trace[Event], first: Sequence[float], near: float
) -> Iterator[Probe]:
    """Yield a probe where a new process, which knows the loop by its name, has other losses."""
    name = variable_of(loop)
    if not name:
        return
    seed = int(str(trace.conditions.get("seed", 0)))
    try:
        with _environment(_ALONE):
            again = observe_apart(f"{loop.file}::{name}", seed, len(first), loop.timeout)
    except (DeclarationError, SubjectError) as fault:
        raise Unjudged(f"alike in one process; in a new one it could not be run: {fault}") from None
    yield from _find_parting("processes", first, losses(again), near)


def _find_parting(
    probe: str, first: Sequence[float], second: Sequence[float], near: float
) -> Iterator[Probe]:
    """Yield a probe of the first step whose loss is another, unless by no more than a share."""
    pairs = list(zip(first, second, strict=False))
    for step, (a, b) in enumerate(pairs):
        if a != b and not (isnan(a) and isnan(b)):
            if not isclose(a, b, rel_tol=near):  # else all that comes after follows from it
                yield Probe(
                    probe=probe,
                    measured=float(step),
                    reference=float(len(pairs)),
                    step=step,
                    label=f"{a!r} against {b!r}",
                )
            return


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for the children that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
