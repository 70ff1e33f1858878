"""Observe a declared schedule: one trace per probe, and the smallest setting that still fails."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

import hypothesis
from hypothesis import strategies as st

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.base import Plain
from trainguard.events.trace import Tick, Trace
from trainguard.observe.schedule import probes
from trainguard.observe.schedule.drive import Setting, call
from trainguard.observe.tools.isolation import session
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.observe.tools.structure import DRAWING, SHRINKING, explore, keep_new
from trainguard.subjects.schedule import NUMBERS, Schedule

PROBES: dict[str, Callable[[Schedule, Setting, int], Iterator[Tick]]] = {
    "run": probes.run,
    "resume": probes.resume,
    "overwrite": probes.overwrite,
    "plateau": probes.plateau,
}
DRAWS = {"quick": 5, "ci": 25, "thorough": 200}
_SHARE = 8  # a drive costs several runs in the other probes: they see the first settings only
_SHRINKING = 10.0  # seconds


def observe(
    schedule: Schedule, device: str, dtype: str, settings: Settings
) -> "ScheduleObservation":
    """Return the observation of a schedule; nothing runs until a trace is asked for."""
    return ScheduleObservation(schedule, device, dtype, settings)


@dataclass
class ScheduleObservation(SubjectObservation[Schedule, Tick]):
    """The traces of one schedule, each observed when first asked for."""

    of, probes = "a schedule", PROBES

    def trace(self, probe: str) -> Trace[Tick]:
        """Return the trace of one probe; a schedule that cannot be run is not probed further."""
        self._traces.check(probe)
        if probe != "run":
            self.trace("run")
        return self._traces.get(probe, lambda _: self.observe_settings(probe, self._draw(probe)))

    def shrink(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding at the smallest setting to which the judge objects alike."""
        probe = self._traces.probe_of(finding)
        tick = finding.event
        if probe is None or not isinstance(tick, Tick):
            return finding
        draws = self._draw(probe)
        known = draws[tick.case] if tick.case < len(draws) else {}
        found, setting = finding, known
        if self.subject.vary:
            objection = _Objection(self, probe, judge, finding)
            count = self._count(probe)
            setting = smallest(self.subject, objection.holds, known, count, self.settings.seed)
            found = objection.at(setting) or finding
        step = found.event.step if isinstance(found.event, Tick) else tick.step
        return replace(found, smallest=found.smallest or call(self.subject, setting, step))

    def _count(self, probe: str) -> int:
        """Return how many settings a probe sees."""
        count = DRAWS[self.settings.profile]
        return count if probe == "run" else max(3, count // _SHARE)

    def _draw(self, probe: str) -> list[Setting]:
        """Return the settings of a probe; drawing is deterministic, so they are not kept."""
        return draw(self.subject, self._count(probe), self.settings.seed)

    def observe_settings(self, probe: str, draws: list[Setting]) -> Trace[Tick]:
        """Run a probe in each setting, the team's global state kept as it was."""
        with session(self.settings.seed, self.subject.timeout):
            ticks = tuple(
                tick
                for case, setting in enumerate(draws)
                for tick in PROBES[probe](self.subject, setting, case)
            )
        self.points += len(ticks)
        return self.make_trace(ticks, _promises(self.subject, draws))


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
            trace = self.observation.observe_settings(self.probe, [setting])
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


class _FailingSetting(Exception):
    """Tells Hypothesis that a setting fails, so that it looks for a smaller one."""


def draw(schedule: Schedule, count: int, seed: int) -> list[Setting]:
    """Draw up to `count` different settings, the smallest first; one empty one without `vary`."""
    drawn: list[Setting] = []
    if not schedule.vary:
        return [{}]
    with suppress(hypothesis.errors.Unsatisfiable):
        _explore(schedule, keep_new(drawn), count, seed)
    if not drawn:
        raise SubjectError(
            "no setting drawn from vary= keeps warmup below total and floor below peak",
            "widen the ranges, or change the promises",
        )
    return drawn


def smallest(
    schedule: Schedule, fails: Callable[[Setting], bool], known: Setting, count: int, seed: int
) -> Setting:
    """
    Return the smallest setting that fails; the known one where no other is found.

    The draws are those of `draw`, so that the setting that failed there is met again.
    """
    failing = [known]

    def judge(setting: Setting) -> None:
        """Report a setting that fails to Hypothesis, which ends with the smallest one."""
        if fails(setting):
            failing.append(setting)
            raise _FailingSetting

    with suppress(_FailingSetting, hypothesis.errors.Flaky):
        _explore(schedule, judge, count, seed, SHRINKING)
    return failing[-1]


def _explore(
    schedule: Schedule,
    test: Callable[[Setting], None],
    count: int,
    seed: int,
    phases: tuple[hypothesis.Phase, ...] = DRAWING,
) -> None:
    """Run a test on settings of the declaration that can be meant."""

    def each(setting: Setting) -> None:
        """Run the test where the setting can be meant."""
        hypothesis.assume(_can_be_meant(schedule, setting))
        test(setting)

    explore(st.fixed_dictionaries(dict(schedule.vary)), each, count, seed, phases)


def _can_be_meant(schedule: Schedule, setting: Setting) -> bool:
    """Say whether a draw keeps the order of the promises: warmup below total, floor below peak."""
    for lower, upper in (("warmup", "total"), ("floor", "peak")):
        least = setting.get(lower, getattr(schedule, lower))
        most = setting.get(upper, getattr(schedule, upper))
        if least is not None and most is not None and least > most:
            return False
    return True
