"""A ScheduleRun is one drive of a schedule in one setting: what each judge of a rate looks at."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from trainguard.core.finding import Finding
from trainguard.core.measure import Place, at_step
from trainguard.events.trace import Tick, Trace

ROUNDING = 1e-6  # what chained multiplications may add up to, as a share of the rate


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """The ticks of one drive in order, with what was promised for the setting it was driven in."""

    trace: Trace[Tick]
    ticks: tuple[Tick, ...]

    def promise(self, name: str) -> float | None:
        """Return the number promised for this setting, or None."""
        return self.trace.promise(name, self.ticks[0].case)

    def word(self, name: str) -> str:
        """Return the word promised, such as the shape, or nothing."""
        return str(self.trace.promises.get(name) or "")

    def is_drawn(self, name: str) -> bool:
        """Say whether a number was drawn for this setting, rather than chosen by the team."""
        return f"{name}@{self.ticks[0].case}" in self.trace.promises

    @property
    def label(self) -> str:
        """What tells this drive apart from alike ones."""
        return self.ticks[0].label

    @property
    def sound(self) -> bool:
        """Whether every rate is a number that can be compared: finite and not negative."""
        return all(isfinite(rate) and rate >= 0 for tick in self.ticks for rate in tick.rates)

    @property
    def groups(self) -> list[int]:
        """The parameter groups that learn at all; every group where none does."""
        every = range(len(self.ticks[0].rates))
        return [g for g in every if any(t.rates[g] != 0 for t in self.ticks)] or list(every)

    def rates(self, group: int) -> list[float]:
        """Return the rates of one parameter group."""
        return [tick.rates[group] for tick in self.ticks]

    @property
    def highest(self) -> list[float]:
        """The highest rate of any parameter group at each step."""
        return [max(tick.rates) for tick in self.ticks]

    @property
    def top(self) -> float:
        """The promised peak, or the highest rate of the run where none was promised."""
        peak = self.promise("peak")
        return max(self.highest) if peak is None else peak

    @property
    def crest(self) -> int:
        """The index at which the highest rate of the run is first reached."""
        rates = self.highest
        least = max(rates) * (1 - ROUNDING)
        return next(i for i, rate in enumerate(rates) if rate >= least)

    @property
    def warmup_end(self) -> int:
        """The index at which the warmup is over: the promised one, or the crest."""
        warmup = self.promise("warmup")
        return self.crest if warmup is None else int(warmup)

    def at(self, index: int, group: int | None = None) -> Place:
        """Return where in the run something is: `step 512, group 1`."""
        several = group is not None and len(self.ticks[0].rates) > 1
        step = at_step(self.ticks[index].step, self.word("unit") or "step")
        return step + (f", group {group}" if several else "")


def drives(trace: Trace[Tick], *phases: str) -> Iterator[ScheduleRun]:
    """Yield the drives of the given phases, in order."""
    for (_, phase, _), ticks in groupby(trace, lambda t: (t.case, t.phase, t.label)):
        if phase in phases:
            yield ScheduleRun(trace, tuple(ticks))


def sound_runs(trace: Trace[Tick]) -> Iterator[ScheduleRun]:
    """Yield the runs whose rates can be compared; `rate_is_finite_and_positive` has the others."""
    return (run for run in drives(trace, "run") if run.sound)


def once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first finding of each summary: settings and groups that fail alike are one."""
    seen = set()
    for finding in findings:
        if finding.summary not in seen:
            seen.add(finding.summary)
            yield finding
