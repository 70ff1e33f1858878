"""
Observe the memory of a subject with a budget: one trace per probe.

A probe is a function `observe(budgeted) -> Iterator[Usage]` of a module of `observe/memory/`.
"""

from dataclasses import dataclass
from typing import Any

from trainguard.core.settings import Settings
from trainguard.events.trace import Trace, Usage
from trainguard.observe.memory import device, leak_watch, scaling, snapshot, step
from trainguard.observe.tools.isolation import session
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.budget import Budget
from trainguard.subjects.subject import Subject

PROBES: dict[str, Any] = {
    "step": step.observe,
    "element": scaling.observe_element,
    "growth": leak_watch.observe,
    "saving": step.observe_saving,
    "scaling": scaling.observe_scaling,
    "device": device.observe,
    "snapshot": snapshot.observe,
}


def observe(subject: Subject, device: str, dtype: str, settings: Settings) -> "MemoryObservation":
    """Return the observation of a subject's memory; nothing runs until a trace is asked for."""
    return MemoryObservation(subject, device, dtype, settings)


@dataclass
class MemoryObservation(SubjectObservation[Subject, Usage]):
    """The traces of one subject's memory on one device in one dtype, each observed once."""

    of, probes, by_device = "memory", PROBES, True

    @property
    def budget(self) -> Budget:
        """The budget that the subject declares."""
        budget = self.subject.memory_budget
        assert budget is not None, "only subjects with a budget are judged by this family"
        return budget

    def _observe_probe(self, probe: str) -> Trace[Usage]:
        """Run one probe, the team's global state kept as it was."""
        # Of a run that was made once already, caches of the team's own are full.
        seed = self.settings.seed + (probe == "growth")
        with session(seed, self.subject.timeout):
            usages: tuple[Usage, ...] = tuple(PROBES[probe](self))
        self.points += len(usages)
        return self.make_trace(usages, family=self.subject.family)
