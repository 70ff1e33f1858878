"""
Observe declared loaders: one trace per probe, each made of the real batches.

A probe is a function `(loaders: Loaders, case: int) -> Iterator[Event]`, where `loaders.made(...)`
makes the loaders of all splits anew (see observe/loaders/splits.py), `serving(loader, split)` takes
batches out of one (serve.py), and `laid_out` and `read` say what is in them (layout.py). Each
stands in a module of observe/loaders/ under its own name, or under the name that PROBES gives. It
runs seeded, on one thread, within the timeout, and processes that it leaves are ended after it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import cast

import torch

from trainguard.catalogue import Judge
from trainguard.event import Event, Plain
from trainguard.fault import SubjectError, Unjudged
from trainguard.finding import Finding
from trainguard.loader import Loader
from trainguard.observe.deadline import deadline
from trainguard.observe.isolation import isolated
from trainguard.observe.loaders.drawing import DRAWS, call, draw, smallest
from trainguard.observe.loaders.serve import no_process_left
from trainguard.observe.loaders.splits import Loaders
from trainguard.observe.session import quiet
from trainguard.observe.traces import Traces
from trainguard.settings import Settings
from trainguard.trace import Trace

Probe = Callable[[Loaders, int], Iterator[Event]]

# Loaded by name when asked for: each in `observe/loaders/<module>.py` under the probe's name.
PROBES = {
    "scan": "scan",
    "workers": "workers",
    "shards": "shards",
    "resume": "resume",
    "reproduce": "reproduce",
    "transform": "transform",
    "settings": "settings",
    "storage": "storage",
}


def observe(loader: Loader, _device: str, _dtype: str, settings: Settings) -> "LoaderObservation":
    """Return the observation of a loader; nothing runs until a trace is asked for."""
    return LoaderObservation(loader, settings)


@dataclass
class LoaderObservation:
    """The traces of one declaration of loaders, each observed when first asked for."""

    loader: Loader
    settings: Settings
    points: int = 0
    _traces: Traces[Event] = field(default_factory=lambda: Traces("a loader", PROBES))

    def trace(self, probe: str) -> Trace[Event]:
        """Return the trace of one probe; a loader that cannot be scanned is not probed further."""
        self._traces.check(probe)
        if probe not in ("scan", "transform"):
            self.trace("scan")
        return self._traces.get(probe, lambda _: self.observed(probe, self._drawn(probe)))

    def shrunk(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding in the smallest setting of `vary` to which the judge objects alike."""
        probe = self._traces.probe_of(finding)
        if not self.loader.vary or probe is None or finding.event is None:
            return finding
        known = self._drawn(probe)[finding.event.case]

        def found_in(setting: dict[str, object]) -> Finding | None:
            """Return the like finding in a setting, if there is one."""
            try:
                trace = self.observed(probe, [setting])
            except (SubjectError, Unjudged):
                return None
            alike = (finding.summary, finding.rank)
            return next((f for f in judge(trace) if (f.summary, f.rank) == alike), None)

        setting, found = smallest(self.loader, found_in, known, finding, self.settings)
        return replace(found, smallest=found.smallest or call(self.loader, setting))

    def observed(self, probe: str, draws: list[dict[str, object]]) -> Trace[Event]:
        """Run a probe in each setting, the team's global state kept as it was."""
        function = _probe(probe)
        seed = self.settings.seed
        # The time ends first: processes that are left are ended without a limit.
        with quiet(), isolated(seed), no_process_left(), deadline(self.loader.timeout):
            events = tuple(
                event
                for case, setting in enumerate(draws)
                for event in function(Loaders(self.loader, setting, seed), case)
            )
        self.points += len(events)
        conditions: dict[str, Plain] = {"torch": torch.__version__, "seed": seed}
        return Trace(self.loader.name, events, conditions, self.loader.promises)

    def _drawn(self, probe: str) -> list[dict[str, object]]:
        """Return the settings of a probe; drawing is deterministic, so they are not kept."""
        count = DRAWS[self.settings.profile]
        count = count if probe == "scan" else max(2, count // 4)
        return draw(self.loader, count, self.settings.seed)


def _probe(name: str) -> Probe:
    """Load a probe by its name."""
    module = import_module(f"trainguard.observe.loaders.{PROBES[name]}")
    return cast(Probe, getattr(module, name))
