"""
Observe declared loaders: one trace per probe, each made of the real batches.

A probe is a function `(loaders: Loaders, case: int) -> Iterator[Event]`, where `loaders.make(...)`
makes the loaders of all splits anew (see splits.py), `serving(loader, split)` takes
batches out of one (iterate.py), and `laid_out` and `read` say what is in them (layout.py). It
runs seeded, on one thread, within the timeout, and processes that it leaves are ended after it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import Flaky

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.observe.loader.iterate import no_process_left
from trainguard.observe.loader.reproduce import reproduce
from trainguard.observe.loader.resume import resume
from trainguard.observe.loader.scan import scan
from trainguard.observe.loader.settings import settings
from trainguard.observe.loader.shards import shards
from trainguard.observe.loader.splits import Loaders
from trainguard.observe.loader.storage import storage
from trainguard.observe.loader.transform import transform
from trainguard.observe.loader.workers import workers
from trainguard.observe.tools.isolation import deadline, isolate, quiet
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.observe.tools.structure import SHRINKING, explore, keep_new
from trainguard.subjects.loader import Loader

Probe = Callable[[Loaders, int], Iterator[Event]]
PROBES: dict[str, Probe] = {
    probe.__name__: probe
    for probe in (scan, workers, shards, resume, reproduce, transform, settings, storage)
}
Setting = dict[str, Any]
DRAWS = {"quick": 3, "ci": 8, "thorough": 50}
_SHRINKING = 10.0  # seconds


def observe(loader: Loader, device: str, dtype: str, settings: Settings) -> "LoaderObservation":
    """Return the observation of a loader; nothing runs until a trace is asked for."""
    return LoaderObservation(loader, device, dtype, settings)


def try_to_make(loader: Loader, settings: Settings) -> None:
    """Make the loaders of all splits once; raises SubjectError where that cannot be done."""
    with quiet(), isolate(settings.seed), no_process_left(), deadline(loader.timeout):
        Loaders(loader, seed=settings.seed).make()


@dataclass
class LoaderObservation(SubjectObservation[Loader, Event]):
    """The traces of one declaration of loaders, each observed when first asked for."""

    of, probes = "a loader", PROBES

    def trace(self, probe: str) -> Trace[Event]:
        """Return the trace of one probe; a loader that cannot be scanned is not probed further."""
        self._traces.check(probe)
        if probe not in ("scan", "transform"):
            self.trace("scan")
        return self._traces.get(probe, lambda _: self.observe_settings(probe, self._draw(probe)))

    def shrink(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding in the smallest setting of `vary` to which the judge objects alike."""
        probe = self._traces.probe_of(finding)
        if not self.subject.vary or probe is None or finding.event is None:
            return finding
        known = self._draw(probe)[finding.event.case]

        def found_in(setting: dict[str, object]) -> Finding | None:
            """Return the like finding in a setting, if there is one."""
            try:
                trace = self.observe_settings(probe, [setting])
            except (SubjectError, Unjudged):
                return None
            alike = (finding.summary, finding.rank)
            return next((f for f in judge(trace) if (f.summary, f.rank) == alike), None)

        setting, found = smallest(self.subject, found_in, known, finding, self.settings)
        return replace(found, smallest=found.smallest or call(self.subject, setting))

    def observe_settings(self, probe: str, draws: list[dict[str, object]]) -> Trace[Event]:
        """Run a probe in each setting, the team's global state kept as it was."""
        function = PROBES[probe]
        seed = self.settings.seed
        # The time ends first: processes that are left are ended without a limit.
        with quiet(), isolate(seed), no_process_left(), deadline(self.subject.timeout):
            events = tuple(
                event
                for case, setting in enumerate(draws)
                for event in function(Loaders(self.subject, setting, seed), case)
            )
        self.points += len(events)
        return self.make_trace(events)

    def _draw(self, probe: str) -> list[dict[str, object]]:
        """Return the settings of a probe; drawing is deterministic, so they are not kept."""
        count = DRAWS[self.settings.profile]
        count = count if probe == "scan" else max(2, count // 4)
        return draw(self.subject, count, self.settings.seed)


class _FailingVariant(Exception):
    """Tells Hypothesis that a setting fails, so that it looks for a smaller one."""


def draw(loader: Loader, count: int, seed: int) -> list[Setting]:
    """Draw up to `count` different settings; one empty one without `vary`."""
    drawn: list[Setting] = []
    if not loader.vary:
        return [{}]
    explore(_settings_of(loader), keep_new(drawn), count, seed)
    return drawn


def smallest(
    loader: Loader,
    found_in: Callable[[Setting], Finding | None],
    known: Setting,
    finding: Finding,
    settings: Settings,
) -> tuple[Setting, Finding]:
    """Return the smallest setting that fails alike, with what is found in it."""
    failing = [(known, finding)]
    started = monotonic()

    def judge(setting: Setting) -> None:
        """Report a setting that fails to Hypothesis, which ends with the smallest one."""
        found = found_in(setting) if monotonic() - started < _SHRINKING else None
        if found is not None:
            failing.append((setting, found))
            raise _FailingVariant

    with suppress(_FailingVariant, Flaky):
        count, seed = DRAWS[settings.profile], settings.seed
        explore(_settings_of(loader), judge, count, seed, SHRINKING)
    return failing[-1]


def call(loader: Loader, setting: Setting) -> str:
    """Write the call of the factory in a setting, as code."""
    given = {**loader.arguments, **setting}
    return f"{loader.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _settings_of(loader: Loader) -> st.SearchStrategy[Setting]:
    """Return the strategy of all settings that a declaration admits."""
    return st.fixed_dictionaries(dict(loader.vary))
