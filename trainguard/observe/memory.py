"""
Observe the memory of a subject with a budget: one trace per probe.

A probe is a module of `observe/usage/` with a function `observe(budgeted) -> Iterator[Usage]`.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module

import torch

from trainguard.budget import Budget
from trainguard.catalogue import Judge
from trainguard.event import Plain
from trainguard.fault import DeclarationError, SubjectError, Unjudged, did_you_mean
from trainguard.finding import Finding
from trainguard.observe.deadline import deadline
from trainguard.observe.isolation import isolated
from trainguard.settings import Settings
from trainguard.subject import Subject
from trainguard.trace import Trace, Usage

PROBES = ("step", "element", "growth", "saving", "scaling", "device", "snapshot")


def observe(subject: Subject, device: str, dtype: str, settings: Settings) -> "MemoryObservation":
    """Return the observation of a subject's memory; nothing runs until a trace is asked for."""
    return MemoryObservation(subject, device, dtype, settings)


@dataclass
class MemoryObservation:
    """The traces of one subject's memory on one device in one dtype, each observed once."""

    subject: Subject
    device: str
    dtype: str
    settings: Settings
    points: int = 0
    _traces: dict[str, Trace[Usage] | SubjectError | Unjudged] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """The budget that the subject declares."""
        budget = self.subject.budgeted
        assert budget is not None, "only subjects with a budget are judged by this family"
        return budget

    def trace(self, probe: str) -> Trace[Usage]:
        """Return the trace of one probe; raises SubjectError or Unjudged again if it did once."""
        if probe not in PROBES:
            raise DeclarationError(f"Memory has no probe {probe!r}.{did_you_mean(probe, PROBES)}")
        if probe not in self._traces:
            try:
                self._traces[probe] = self._observed(probe)
            except (SubjectError, Unjudged) as fault:
                self._traces[probe] = fault
        kept = self._traces[probe]
        if not isinstance(kept, Trace):
            raise kept
        return kept

    def shrunk(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding: the sizes of a budget are those that it is about."""
        return finding

    def _observed(self, probe: str) -> Trace[Usage]:
        """Run one probe, the team's global state kept as it was."""
        module = import_module(f"trainguard.observe.usage.{probe}")
        # Of a run that was made once already, caches of the team's own are full.
        seed = self.settings.seed + (probe == "growth")
        with self._session(seed):
            usages: tuple[Usage, ...] = tuple(module.observe(self))
        self.points += len(usages)
        conditions: dict[str, Plain] = {
            "family": self.subject.family,
            "device": self.device,
            "dtype": self.dtype,
            "torch": torch.__version__,
            "seed": self.settings.seed,
            "threads": 1,
        }
        return Trace(self.subject.name, usages, conditions, self.subject.promises)

    @contextmanager
    def _session(self, seed: int) -> Iterator[None]:
        """Run the team's code silently, within its time, and leave no trace of it."""
        with (
            isolated(seed),
            deadline(self.subject.timeout),
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
