"""Observe a declared loss: one trace per probe, and the smallest counterexample of a finding."""

from dataclasses import dataclass, field, replace

import torch
from torch import Generator

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.trace import Sample, Trace
from trainguard.observe.loss.batching import evaluator
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.minimize import PROBE_OF, Minimizer, culprit
from trainguard.observe.loss.probes import EFFORTS, INSTRUMENTS, Instrument
from trainguard.observe.loss.search import explore, is_confirmed, merge
from trainguard.observe.loss.side_effects import SideEffects, conduct
from trainguard.observe.tools.isolation import session
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.observe.tools.structure import Structure, draw
from trainguard.subjects.loss import Loss

PROBES = ("conduct", *INSTRUMENTS)


def observe(loss: Loss, device: str, dtype: str, settings: Settings) -> "LossObservation":
    """Return the observation of a loss; nothing runs until a trace is asked for."""
    return LossObservation(loss, device, dtype, settings)


@dataclass
class LossObservation(SubjectObservation[Loss, Sample]):
    """The traces of one loss on one device in one dtype, each observed when first asked for."""

    of, probes, by_device = "a loss", PROBES, True

    _structures: list[Structure] = field(default_factory=list)
    _conduct: SideEffects | None = None
    _mixes: bool = False

    def shrink(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding at the smallest structure and the roundest point that still fail."""
        sample = finding.event
        if not isinstance(sample, Sample):
            return finding
        if self._conduct is not None and sample.quantity not in PROBE_OF:
            return replace(finding, smallest=self._conduct.calls[sample.case])
        inquiry = Minimizer(self, finding, judge, sample)
        try:
            with session(self.settings.seed, self.subject.timeout):
                return inquiry.smallest()
        except SubjectError:  # out of time, or it fails at other points: show what was seen
            return inquiry.as_seen()

    def structure(self, case: int) -> Structure:
        """Return the structure of a case."""
        return self._structures[case]

    def evaluator(self, instrument: Instrument, structure: Structure) -> Evaluator:
        """Make the evaluator that an instrument needs for one structure."""
        dtype = getattr(torch, instrument.dtype or self.dtype)
        protect = self._conduct is not None and self._conduct.protect
        sized = instrument.fix_sizes(self.subject, structure)
        whole = sized is not structure
        made = evaluator(self.subject, sized, self.device, dtype, protect=protect, whole=whole)
        return made.apart() if made.is_joined and self._mixes else made

    def generator(self) -> Generator:
        """Return a source of random points that is the same in every run with the same seed."""
        return Generator().manual_seed(self.settings.seed)

    def _observe_probe(self, probe: str) -> Trace[Sample]:
        """Run one probe; what stops it is shown by the simplest call that does so too."""
        with session(self.settings.seed, self.subject.timeout):
            try:
                self._prepare()
                return self.make_trace(self._samples(probe))
            except SubjectError as fault:
                dtype = getattr(torch, self.dtype)
                call = culprit(self.subject, self._structures, self.device, dtype, fault)
                fault.call = call or fault.call
                raise

    def _samples(self, probe: str) -> tuple[Sample, ...]:
        """Run one probe over all structures."""
        if probe == "conduct":
            assert self._conduct is not None, "prepared before"
            return self._conduct.samples
        instrument = INSTRUMENTS[probe]
        profile = EFFORTS[self.settings.profile]
        # One source for all: structures that come to the same then add their points up.
        found, generator = [], self.generator()
        for case, structure in enumerate(self._structures):
            made = self._usable(instrument, structure)
            effort = instrument.effort(profile, made)
            worst = explore(instrument.probe, made, case, effort, generator)
            if made.is_joined and not is_confirmed(instrument.probe, made, case, worst):
                self._mixes = True  # from now on no two points share a call
                made = self._usable(instrument, structure)
                effort = instrument.effort(profile, made)
                worst = explore(instrument.probe, made, case, effort, generator)
            found.append(worst)
            self.points += effort.rounds * (effort.batch or made.batch)
        return merge(found)

    def _prepare(self) -> None:
        """Draw the structures and watch a few calls, once for all probes."""
        if self._conduct is None:
            effort = EFFORTS[self.settings.profile]
            self._structures = draw(self.subject, effort.structures, self.settings.seed)
            dtype = getattr(torch, self.dtype)
            self._conduct = conduct(self.subject, self._structures, self.device, dtype)

    def _usable(self, instrument: Instrument, structure: Structure) -> Evaluator:
        """Make an evaluator; a loss that only fails in the instrument's dtype is not judged."""
        try:
            made = self.evaluator(instrument, structure)
        except SubjectError as fault:
            if instrument.dtype in ("", self.dtype):
                raise
            raise Unjudged(f"the loss does not run in {instrument.dtype}: {fault}") from fault
        return made
