"""Look for the smallest case of a finding: the smallest structure, then the roundest point."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.trace import Sample, Trace
from trainguard.observe.loss.call import LossCase, check_attached
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.probes import EFFORTS, INSTRUMENTS, Instrument
from trainguard.observe.loss.search import Effort, Key, explore, measure, tensors
from trainguard.observe.loss.shrink import shrink
from trainguard.observe.loss.side_effects import make_copies
from trainguard.observe.tools import call_code
from trainguard.observe.tools.isolation import deadline
from trainguard.observe.tools.points import Box, Points, draw
from trainguard.observe.tools.structure import Structure, smallest
from trainguard.subjects.loss import Loss

_TRIES = 16
_GLANCE = Effort(structures=1, rounds=2, batch=1024)
_ERROR_SECONDS = 5.0
_POINTS = 32
_ERROR_TRIES = 32


class Observed(Protocol):
    """What an inquiry asks of the observation that the finding comes from."""

    @property
    def subject(self) -> Loss:
        """The declared subject."""

    @property
    def settings(self) -> Settings:
        """The settings of the run."""

    def structure(self, case: int) -> Structure:
        """Return the structure of a case."""

    def evaluator(self, instrument: Instrument, structure: Structure) -> Evaluator:
        """Make the evaluator that an instrument needs for one structure."""

    def make_trace(self, events: tuple[Sample, ...]) -> Trace[Sample]:
        """Return samples as a trace under the same conditions."""

    def generator(self) -> Generator:
        """Return a source of random points."""


@dataclass
class Minimizer:
    """One finding, the judge that made it and the sample that shows it."""

    observed: Observed
    finding: Finding
    judge: Judge
    sample: Sample

    def smallest(self) -> Finding:
        """Return the finding at its smallest case, with the call that shows it."""
        structure = self._structure()
        made = self.observed.evaluator(self._instrument, structure)
        start = self._worst(made, EFFORTS[self.observed.settings.profile]) or self._worst(made)
        if start is None:  # nothing smaller shows it again: stay with what was seen
            structure = self.observed.structure(self.sample.case)
            made = self.observed.evaluator(self._instrument, structure)
            start = self.sample
        worst = tensors(start.point, made.box)
        point = shrink(made.box, worst, lambda points: self._objects(made, points))
        for sample in self._measure(made, point):
            for finding in self._findings(sample):
                # A probe may have moved the point: to where a line jumps, inside its range.
                exact = {name: t[0] for name, t in tensors(sample.point, made.box).items()}
                call = call_code.call(made.loss, made.component.structure, exact)
                return replace(finding, smallest=call)
        return self.as_seen()

    def as_seen(self) -> Finding:
        """Return the finding with the call at which it was seen, as it is."""
        box = Box(self.observed.subject.tensors, {}, torch.float64, "cpu")
        exact = {name: t[0] for name, t in tensors(self.sample.point, box).items()}
        structure = self.observed.structure(self.sample.case)
        return replace(
            self.finding, smallest=call_code.call(self.observed.subject, structure, exact)
        )

    @property
    def _instrument(self) -> Instrument:
        """The instrument whose probe measures the finding's quantity."""
        return INSTRUMENTS[PROBE_OF[self.sample.quantity]]

    @property
    def _key(self) -> Key:
        """What the finding's number belongs to."""
        return Key(self.sample.quantity, self.sample.input, self.sample.label)

    def _structure(self) -> Structure:
        """Return the smallest structure at which a short look finds the same again."""
        first, known = self.observed.structure(0), self.observed.structure(self.sample.case)
        if self._shows(first):
            return first
        seed = self.observed.settings.seed
        return smallest(self.observed.subject, self._shows, known, _TRIES, seed)

    def _shows(self, structure: Structure) -> bool:
        """Say whether a short look at a structure shows the same finding."""
        try:
            made = self.observed.evaluator(self._instrument, structure)
            return self._worst(made) is not None
        except (SubjectError, Unjudged):
            return False

    def _worst(self, made: Evaluator, effort: Effort = _GLANCE) -> Sample | None:
        """Return the worst sample of the finding's quantity, if the judge objects to it."""
        probe = self._instrument.probe
        effort = self._instrument.effort(effort, made)
        found = explore(probe, made, self.sample.case, effort, self.observed.generator())
        worst = found.get(self._key)
        return worst.sample if worst is not None and self._findings(worst.sample) else None

    def _measure(self, made: Evaluator, points: Points) -> list[Sample]:
        """Measure the finding's quantity at each point, as many times as it was seen."""
        samples = measure(self._instrument.probe, made, self._key, self.sample.case, points)
        return [replace(s, bad=self.sample.bad, points=self.sample.points) for s in samples]

    def _objects(self, made: Evaluator, points: Points) -> list[bool]:
        """Say for each point whether the judge makes the same finding there."""
        return [bool(self._findings(sample)) for sample in self._measure(made, points)]

    def _findings(self, sample: Sample) -> list[Finding]:
        """Judge one sample by itself and keep the findings of the same kind."""
        same = (self.finding.summary, self.finding.rank)
        trace = self.observed.make_trace((sample,))
        return [f for f in self.judge(trace) if (f.summary, f.rank) == same]


# Each quantity is measured by one probe.
PROBE_OF = {
    "value": "sweep",
    "gradient": "sweep",
    "largest_gradient": "sweep",
    "plateau": "plateau",
    "unreached": "plateau",
    "jump": "line",
    "difference": "difference",
    "precision": "precision",
    "device": "devices",
    "mixing": "mixing",
    "padding": "padding",
    "padding_gradient": "padding",
    "padding_length": "padding",
    "component": "components",
    "relation": "relations",
    "likelihood": "bins",
}


def culprit(
    loss: Loss,
    structures: Sequence[Structure],
    device: str,
    dtype: torch.dtype,
    fault: SubjectError,
) -> str:
    """Return the simplest call that fails as `fault` did, or nothing where none is found soon."""
    search = _Search(loss, device, dtype, fault)
    try:
        with deadline(min(_ERROR_SECONDS, loss.timeout)):
            known = next((s for s in structures if search.failing(s)), None)
            return "" if known is None else search.call(known)
    except SubjectError:  # out of time
        return ""


@dataclass
class _Search:
    """One fault, and calls that may or may not fail in the same way."""

    loss: Loss
    device: str
    dtype: torch.dtype
    fault: SubjectError

    def call(self, known: Structure) -> str:
        """Return the simplest failing call that can be found from a structure that fails."""
        structure = smallest(
            self.loss, lambda s: self.failing(s) is not None, known, _ERROR_TRIES, seed=0
        )
        point = self.failing(structure)
        assert point is not None, "it fails at this structure"
        point = shrink(self._box(structure), point, lambda many: self._fails(structure, many))
        return call_code.call(self.loss, structure, {name: t[0] for name, t in point.items()})

    def failing(self, structure: Structure) -> Points | None:
        """Return one of a few points at which a call of a structure fails alike."""
        points = draw(self._box(structure), _POINTS, Generator().manual_seed(0))
        for index in range(_POINTS):
            one = {name: t[index : index + 1] for name, t in points.items()}
            if self._fails(structure, one)[0]:
                return one
        return None

    def _box(self, structure: Structure) -> Box:
        """Return the box of a structure's inputs."""
        return Box(self.loss.tensors, structure.sizes, self.dtype, self.device)

    def _fails(self, structure: Structure, points: Points) -> list[bool]:
        """Say for each point whether the call at it fails as the fault did."""
        count = len(next(iter(points.values())))
        return [
            self._alike(structure, {name: t[index] for name, t in points.items()})
            for index in range(count)
        ]

    def _alike(self, structure: Structure, point: Points) -> bool:
        """Say whether one call raises the same kind of exception, or none where there was none."""
        try:
            component = LossCase(self.loss, structure, self.device, self.dtype)
            check_attached(component.total(make_copies(self.loss, point)))
        except SubjectError as fault:
            return type(fault.__cause__) is type(self.fault.__cause__)
        return False
