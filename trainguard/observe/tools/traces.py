"""The traces of one observation: a probe runs once, for all the invariants that judge it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.finding import Finding
from trainguard.events.trace import E, Trace


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
