"""What is observed of a subject: a probe runs once, for all the invariants that judge it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch

from trainguard.core.catalogue import Judge
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.base import Plain
from trainguard.events.trace import E, Trace
from trainguard.subjects.subject import Subject

S = TypeVar("S", bound=Subject)


@dataclass
class Traces(Generic[E]):
    """
    What became of each probe: its trace, or what stopped it, which is raised each time.

    of: whose probes they are, such as "a model". probes: their names.
    """

    of: str
    probes: Collection[str]
    _kept: dict[str, Trace[E] | Exception] = field(default_factory=dict)

    def get(self, probe: str, observed: Callable[[str], Trace[E]]) -> Trace[E]:
        """Return the trace of a probe; `observed` makes it where it is asked for first."""
        self.check(probe)
        if probe not in self._kept:
            try:
                self._kept[probe] = observed(probe)
            except Exception as fault:  # noqa: BLE001 raised again for each invariant, as it is
                self._kept[probe] = fault
        kept = self._kept[probe]
        if isinstance(kept, Exception):
            raise kept
        return kept

    def check(self, probe: str) -> None:
        """Raise DeclarationError where there is no such probe."""
        if probe not in self.probes:
            near = did_you_mean(probe, self.probes)
            raise DeclarationError(f"There is no probe {probe!r} of {self.of}.{near}")

    def probe_of(self, finding: Finding) -> str | None:
        """Return the probe in whose trace the finding's event stands."""
        for probe, kept in self._kept.items():
            if isinstance(kept, Trace) and any(event is finding.event for event in kept):
                return probe
        return None


@dataclass
class SubjectObservation(Generic[S, E]):
    """
    The traces of one subject on one device in one dtype, each observed when first asked for.

    of: what it is of, such as "a model". probes: the names of its probes. by_device: whether the
    device and the dtype are among the conditions of its traces.
    """

    of: ClassVar[str]
    probes: ClassVar[Collection[str]]
    by_device: ClassVar[bool] = False

    subject: S
    device: str
    dtype: str
    settings: Settings
    points: int = 0

    def __post_init__(self) -> None:
        """Keep what becomes of each probe."""
        self._traces: Traces[E] = Traces(self.of, self.probes)

    def trace(self, probe: str) -> Trace[E]:
        """Return the trace of one probe; raises SubjectError or Unjudged again if it did once."""
        return self._traces.get(probe, self._observe_probe)

    def shrink(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding: where nothing smaller is looked for, it is as small as it can be."""
        return finding

    def make_trace(
        self, events: tuple[E, ...], promises: dict[str, Plain] | None = None, **first: Plain
    ) -> Trace[E]:
        """Return events as a trace under the conditions of this observation."""
        conditions: dict[str, Plain] = dict(first)
        if self.by_device:
            conditions |= {"device": self.device, "dtype": self.dtype}
        conditions |= {"torch": torch.__version__, "seed": self.settings.seed}
        if self.by_device:
            conditions["threads"] = 1
        known = self.subject.promises if promises is None else promises
        return Trace(self.subject.name, events, conditions, known)

    def _observe_probe(self, probe: str) -> Trace[E]:
        """Run one probe, the team's global state kept as it was."""
        raise NotImplementedError
