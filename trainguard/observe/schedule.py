"""Observe a declared schedule: one trace per probe, and the smallest setting that still fails."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from time import monotonic

import torch

from trainguard.catalogue import Judge
from trainguard.event import Plain
from trainguard.fault import DeclarationError, SubjectError, Unjudged, did_you_mean
from trainguard.finding import Finding
from trainguard.observe import replay
from trainguard.observe.deadline import deadline
from trainguard.observe.drive import Setting, call
from trainguard.observe.isolation import isolated
from trainguard.observe.setting import draw, smallest
from trainguard.schedule import NUMBERS, Schedule
from trainguard.settings import Settings
from trainguard.trace import Tick, Trace

PROBES: dict[str, Callable[[Schedule, Setting, int], Iterator[Tick]]] = {
    "run": replay.run,
    "resume": replay.resume,
    "overwrite": replay.overwrite,
    "plateau": replay.plateau,
}
DRAWS = {"quick": 5, "ci": 25, "thorough": 200}
_SHARE = 8  # a drive costs several runs in the other probes: they see the first settings only
_SHRINKING = 10.0  # seconds


def observe(
    schedule: Schedule, _device: str, _dtype: str, settings: Settings
) -> "ScheduleObservation":
    """Return the observation of a schedule; nothing runs until a trace is asked for."""
    return ScheduleObservation(schedule, settings)


@dataclass
class ScheduleObservation:
    """The traces of one schedule, each observed when first asked for."""

    schedule: Schedule
    settings: Settings
    points: int = 0
    _traces: dict[str, Trace[Tick] | SubjectError | Unjudged] = field(default_factory=dict)

    def trace(self, probe: str) -> Trace[Tick]:
        """Return the trace of one probe; a schedule that cannot be run is not probed further."""
        if probe not in PROBES:
            raise DeclarationError(
                f"Schedules have no probe {probe!r}.{did_you_mean(probe, PROBES)}"
            )
        if probe != "run":
            self.trace("run")
        if probe not in self._traces:
            try:
                self._traces[probe] = self._observed(probe, self._drawn(probe))
            except (SubjectError, Unjudged) as fault:
                self._traces[probe] = fault
        kept = self._traces[probe]
        if not isinstance(kept, Trace):
            raise kept
        return kept

    def shrunk(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding at the smallest setting to which the judge objects alike."""
        probe = self._probe_of(finding)
        tick = finding.event
        if probe is None or not isinstance(tick, Tick):
            return finding
        draws = self._drawn(probe)
        known = draws[tick.case] if tick.case < len(draws) else {}
        found, setting = finding, known
        if self.schedule.vary:
            objection = _Objection(self, probe, judge, finding)
            count = self._count(probe)
            setting = smallest(self.schedule, objection.holds, known, count, self.settings.seed)
            found = objection.at(setting) or finding
        step = found.event.step if isinstance(found.event, Tick) else tick.step
        return replace(found, smallest=found.smallest or call(self.schedule, setting, step))

    def _count(self, probe: str) -> int:
        """Return how many settings a probe sees."""
        count = DRAWS[self.settings.profile]
        return count if probe == "run" else max(3, count // _SHARE)

    def _drawn(self, probe: str) -> list[Setting]:
        """Return the settings of a probe; drawing is deterministic, so they are not kept."""
        return draw(self.schedule, self._count(probe), self.settings.seed)

    def _observed(self, probe: str, draws: list[Setting]) -> Trace[Tick]:
        """Run a probe in each setting, the team's global state kept as it was."""
        with _quiet(), isolated(self.settings.seed), deadline(self.schedule.timeout):
            ticks = tuple(
                tick
                for case, setting in enumerate(draws)
                for tick in PROBES[probe](self.schedule, setting, case)
            )
        self.points += len(ticks)
        conditions: dict[str, Plain] = {"torch": torch.__version__, "seed": self.settings.seed}
        return Trace(self.schedule.name, ticks, conditions, _promises(self.schedule, draws))

    def _probe_of(self, finding: Finding) -> str | None:
        """Return the probe in whose trace the finding's event stands."""
        for probe, trace in self._traces.items():
            if isinstance(trace, Trace) and any(tick is finding.event for tick in trace):
                return probe
        return None


@dataclass
class _Objection:
    """What a judge says about single settings, for as long as there is time to ask."""

    observation: ScheduleObservation
    probe: str
    judge: Judge
    finding: Finding
    started: float = field(default_factory=monotonic)

    def holds(self, setting: Setting) -> bool:
        """Say whether the judge objects to a setting as it did in the finding."""
        in_time = monotonic() - self.started < _SHRINKING
        return in_time and self.at(setting) is not None

    def at(self, setting: Setting) -> Finding | None:
        """Return the like finding in a setting, if there is one."""
        try:
            trace = self.observation._observed(self.probe, [setting])  # noqa: SLF001
        except (SubjectError, Unjudged):
            return None
        alike = (self.finding.summary, self.finding.rank)
        return next((f for f in self.judge(trace) if (f.summary, f.rank) == alike), None)


def _promises(schedule: Schedule, draws: list[Setting]) -> dict[str, Plain]:
    """Return the promises, with what was drawn for a case as `name@case`."""
    drawn: dict[str, Plain] = {
        f"{name}@{case}": setting[name]
        for case, setting in enumerate(draws)
        for name in NUMBERS
        if name in setting
    }
    return {**schedule.promises, **drawn}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what schedules print and warn about out of the report."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
