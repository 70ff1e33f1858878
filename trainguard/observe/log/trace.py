"""A logged run as a Trace: its rows as Steps and Evaluations, its parts, what it says twice."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from typing import Any, Final

from trainguard.events.base import Event, Plain
from trainguard.events.log import LogPart, Repeat
from trainguard.events.loop import Evaluation, Logged, Step
from trainguard.events.trace import Trace
from trainguard.observe.log.column import LoggedColumn, Point
from trainguard.observe.log.configuration import settings_beside
from trainguard.observe.log.failed_allocations import find_failed
from trainguard.observe.log.order import settle
from trainguard.observe.log.roles import EVALUATED, FAR, LOSS, METRIC, NORM, RATE, SECONDS
from trainguard.observe.log.run import LoggedRun

ORDER: Final = ("forward", "backward")  # what each row of a training stands for
_NO_CLOCK = 0.1  # of the rows: a clock that is set goes back once or twice
_EDGE = 64  # steps of a part that are held against those said again


def trace_of(run: LoggedRun, name: str, promises: dict[str, Plain]) -> Trace[Any]:
    """Return the trace of a run, as far as its log shows one."""
    chosen = {role: run.best(role) for role in (LOSS, RATE, NORM, SECONDS)}
    columns = {role: column for role, column in chosen.items() if column is not None}
    main = run.main
    parts, numbers = list[LogPart](), _Numbers([])
    left_out, clock = 0, (0, 0, 0)
    if main is not None:
        clock = _watch_clock(main)
        if clock[1] >= _NO_CLOCK * clock[2]:
            _forget_times(run)
        for column in {id(c): c for c in run.columns.values()}.values():
            left = settle(column)
            left_out = left if column is main else left_out
        replaced = _settle_parts(main, columns)
        numbers = _Numbers([main, *columns.values()])
        parts = [*_parts(main, replaced, numbers)]
    events: list[Event] = [*parts]
    steps = [*_steps(columns, main, numbers)] if main is not None else []
    events += steps
    evaluated = _evaluations(run, steps, numbers)
    for kind in (_repeats(run, numbers), evaluated, _metrics(run, numbers), find_failed(run)):
        events += kind
    told = main.points if main is not None else []
    return Trace(
        name,
        tuple(events),
        conditions={
            "ended": "finished",
            "log": run.sources[0].format,
            "files": tuple(str(source.path) for source in run.sources),
            "unit": run.unit if numbers.whole else "row",
            "steps": main.count if main is not None else 0,
            "seconds": _seconds(told),
            "clock goes back": clock if clock[1] else (),
            "columns": tuple(column.name for column in columns.values()),
            "total": run.total,
            "rows left out": left_out,
            "rounded norm": NORM in columns and columns[NORM].coarse > 0,
            "settings": settings_beside([source.path for source in run.sources]),
        },
        promises=promises,
    )


def _watch_clock(main: LoggedColumn) -> tuple[int, int, int]:
    """Return the first step at which the clock goes back, how often it does, and of how many."""
    pairs = [(a, b) for a, b in pairwise(main.points) if a.part == b.part and b.time == b.time]
    back = [int(b.step) for a, b in pairs if b.time < a.time]
    return (back[0] if back else 0), len(back), len(pairs)


def _forget_times(run: LoggedRun) -> None:
    """Forget the times of a run: what goes back so often is no clock, but perhaps a duration."""
    for column in run.columns.values():
        column.points = [p._replace(time=nan) for p in column.points]
        for part in column.parts:
            part.time = part.until = nan


class _Numbers:
    """
    The rows of a run in order, and the number of each: its step where all are whole.

    Epochs such as 0.25 are no numbers of rows, which are counted instead.
    """

    def __init__(self, columns: Sequence[LoggedColumn]) -> None:
        places = {p.step: p for column in columns for p in reversed(column.points)}
        self.rows = sorted(places.values(), key=lambda p: (p.step, p.part))
        self.whole = all(p.step == int(p.step) for p in self.rows[:_EDGE])
        self._steps = [p.step for p in self.rows]

    def at(self, step: float) -> int:
        """Return the number of the row that is at a step, or else the last one before it."""
        if self.whole or not self.rows:
            return int(step)
        return self.rows[max(0, bisect_right(self._steps, step) - 1)].number


Replaced = list[tuple[float, float, float]]  # the steps, losses and rates that are said again


def _settle_parts(main: LoggedColumn, columns: dict[str, LoggedColumn]) -> list[Replaced]:
    """Drop the rows that a later part of a run says again; return those of each part."""
    told, rates = list[Replaced](), columns.get(RATE)
    for number, part in enumerate(main.parts):
        told.append([])
        if part.rewound:
            old = [p for p in main.points if p.part < number and p.step >= part.first]
            by_step = {p.step: p.value for p in rates.points if p.part < number} if rates else {}
            told[-1] = [(p.step, p.value, by_step.get(p.step, nan)) for p in old[:_EDGE]]
            for column in columns.values():
                column.points = [
                    p for p in column.points if p.part >= number or p.step < part.first
                ]
    return told


def _parts(
    main: LoggedColumn, replaced: Sequence[Replaced], numbers: _Numbers
) -> Iterator[LogPart]:
    """Yield the parts of a run."""
    ends = [*(part.begin for part in main.parts[1:]), main.count]
    for case, (part, end) in enumerate(zip(main.parts, ends, strict=True)):
        yield LogPart(
            case=case,
            source=part.source,
            first=numbers.at(part.first),
            last=numbers.at(part.last),
            rows=end - part.begin,
            rewound=part.rewound,
            replaced=tuple((numbers.at(n), loss, rate) for n, loss, rate in replaced[case]),
            pause=part.time - main.parts[case - 1].until if case else nan,
        )


def _steps(
    columns: dict[str, LoggedColumn], main: LoggedColumn, numbers: _Numbers
) -> Iterator[Step]:
    """Yield the rows of a run as steps, with what is known of each."""
    values = {role: {p.step: p.value for p in c.points} for role, c in columns.items()}
    rates = (
        [p for p in columns[RATE].points if _is_known(p.value, columns[RATE])]
        if RATE in columns
        else []
    )
    starts = [p.step for p in rates]
    begins = [part.first for part in main.parts]
    for clock, (point, after) in enumerate(pairwise([*numbers.rows, numbers.rows[-1]])):
        at = bisect_right(starts, point.step)
        rate = values.get(RATE, {}).get(point.step, nan)
        loss = values.get(LOSS, {}).get(point.step)
        norm = values.get(NORM, {}).get(point.step)
        norm = nan if norm is None else norm if isfinite(norm) else inf
        yield Step(
            step=numbers.at(point.step),
            case=max(0, bisect_right(begins, point.step) - 1),
            optimizer="training",
            clock=clock,
            span=max(1, after.number - point.number) if after.part == point.part else 1,
            loss=nan if loss is None else loss,
            losses=() if loss is None else (loss,),
            order=ORDER,
            received=1,
            held=1,
            norm=norm,
            norm_before=norm,
            rates=(rates[at - 1].value,) if at else (),
            reported=(rate,) if rates and rate == rate and _is_known(rate, columns[RATE]) else (),
            seconds=_pace(point, after, values.get(SECONDS, {})),
        )


def _is_known(value: float, column: LoggedColumn) -> bool:
    """Say whether a value is one, and no zero that may have been rounded to it."""
    return isfinite(value) and (value != 0 or not column.coarse)


def _pace(point: Point, after: Point, seconds: dict[float, float]) -> float:
    """Return the seconds of one step from a row on; 0 where nobody knows."""
    if point.step in seconds:
        return seconds[point.step]
    span, time = after.step - point.step, after.time - point.time
    return time / span if span > 0 and time > 0 and after.part == point.part else 0.0


def _seconds(points: Sequence[Point]) -> float:
    """Return how long a run took, pauses between its parts left out; 0 where nobody knows."""
    known = (b.time - a.time for a, b in pairwise(points) if a.part == b.part)
    return sum(each for each in known if each > 0)


def _repeats(run: LoggedRun, numbers: _Numbers) -> Iterator[Repeat]:
    """Yield what the main columns say more than once."""
    for role in (LOSS, RATE, NORM, EVALUATED):
        column = run.best(role)
        told = column.repeats if column is not None else None
        if column is not None and told is not None and told.steps:
            extra = column.count * (told.most - 1)
            regular = told.steps >= column.count - 1 and told.extra == extra
            yield Repeat(
                column=column.name,
                source=column.parts[0].source,
                step=numbers.at(told.step),
                values=told.values,
                steps=told.steps,
                of=column.count,
                alike=told.alike,
                most=told.most,
                least=told.most if regular else 1,
                exact=run.sources[0].format != "output",
            )


def _evaluations(run: LoggedRun, steps: Sequence[Step], numbers: _Numbers) -> Iterator[Evaluation]:
    """Yield the validation losses, each after the step that it was logged at."""
    known = [step.step for step in steps]
    for column in run.columns.values():
        if column.meaning.role != EVALUATED or column.meaning.rank >= FAR:
            continue
        if column.coarse and column.zeros:
            continue  # zeros that may be rounded
        for point in column.points:
            step = numbers.at(point.step)
            yield Evaluation(
                step=step,
                clock=max(0, bisect_right(known, step) - 1),
                module=column.name,
                source=column.parts[0].source,
                loss=point.value,
                count=1,
                measures=True,
            )


def _metrics(run: LoggedRun, numbers: _Numbers) -> Iterator[Logged]:
    """Yield the metrics: accuracies, scores."""
    for column in run.columns.values():
        if column.meaning.role == METRIC:
            for point in column.points:
                yield Logged(
                    name=column.name,
                    value=point.value,
                    step=numbers.at(point.step),
                    rounding=column.coarse,
                    channel=run.sources[0].format,
                    source=column.parts[0].source,
                )
