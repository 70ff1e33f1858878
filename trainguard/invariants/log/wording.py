"""What judgements of a log share: its rows, its unit, its parts."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from trainguard.core.measure import Place
from trainguard.events.base import Event
from trainguard.events.log import LogPart
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import some
from trainguard.invariants.loop.wording import events, middle

Points = Sequence[tuple[Step, float]]
RATES = some(Step, "no learning rate was logged", lambda s: s.reported)
NORMS = some(Step, "no gradient norm was logged", lambda s: s.norm == s.norm)
LOSSES = some(Step, "no training loss was logged", lambda s: s.losses)
RESUMES = some(LogPart, "the run was never resumed", lambda part: part.case > 0)


def rows(trace: Trace[Any]) -> tuple[Step, ...]:
    """Return the rows of a log, in order."""
    return events(trace, Step)


def losses(trace: Trace[Any]) -> list[tuple[Step, float]]:
    """Return the rows with a finite loss, and the loss."""
    return [(s, s.loss) for s in rows(trace) if s.losses and isfinite(s.loss)]


def rates(trace: Trace[Any]) -> list[tuple[Step, float]]:
    """Return the rows with a rate, and the rate."""
    return [(s, s.reported[0]) for s in rows(trace) if s.reported]


def norms(trace: Trace[Any]) -> list[tuple[Step, float]]:
    """Return the rows with a gradient norm, and the norm, though it be no number."""
    known = [s for s in rows(trace) if s.norm == s.norm]
    return [(s, s.norm) for s in known]


def at(trace: Trace[Any], step: Step) -> Place:
    """Return where in the log a row is: "step 512", "epoch 3", "row 7"."""
    return Place(f"{unit(trace)} {step.step}", step=step.step)


def unit(trace: Trace[Any]) -> str:
    """Return what the rows of a log are counted in: "step", "epoch" or "row"."""
    return str(trace.conditions.get("unit", "step"))


def part_of(points: Points, low: float, high: float) -> Points:
    """Return one part of the rows by their number (0 to 0.25: the first quarter); at least one."""
    begin, end = int(low * len(points)), int(high * len(points))
    return points[begin : max(end, begin + 1)]


def typical(points: Points) -> float:
    """Return the median of the values."""
    return middle(value for _, value in points)


def spread(values: Iterable[float]) -> float:
    """Return the typical distance from the median: 1.48 times the median of all distances."""
    listed = [v for v in values if isfinite(v)]
    level = middle(listed)
    return 1.4826 * middle(abs(v - level) for v in listed)


def parts(trace: Trace[Event]) -> tuple[LogPart, ...]:
    """Return the parts of a log, in order."""
    return events(trace, LogPart)


def setting(trace: Trace[Any], names: Sequence[str]) -> float | None:
    """Return the number above zero that the settings beside a log tell by one of some names."""
    every, told = set[str](), trace.conditions.get("settings")
    for pair in told if isinstance(told, tuple) else ():
        if isinstance(pair, tuple) and str(pair[0]).rpartition(".")[2].lower() in names:
            every.add(str(pair[1]))
    try:
        known = {float(value) for value in every}
    except ValueError:
        return None
    above = {value for value in known if value > 0}
    return above.pop() if len(above) == 1 else None
