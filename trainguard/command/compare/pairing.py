"""
Two trainings side by side: what is typical of each, pair by pair, and what differs otherwise.

A pair is one run of each side, made one after the other and under the same seed where the side
takes one. Where there is only one training of each, blocks of its steps are paired instead.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from trainguard.command.compare.interval import (
    MEASURES,
    Change,
    Margin,
    apply_margin,
    interval,
    mean,
)
from trainguard.core.errors import DeclarationError
from trainguard.events.loop import Evaluation, Step
from trainguard.events.trace import Trace

Value = float | None  # None where a run has nothing to say of a measure
Pairs = Sequence[tuple[float, float]]
_TAIL: Final = 0.1  # the share of the steps whose mean loss is the loss at the end
_BLOCKS: Final = 8
CONDITIONS: Final = (
    "torch", "python", "device", "hardware", "dtype", "threads", "deterministic", "arguments",
    "torch_seed", "optimizers", "ended", "log", "unit", "total",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    All that is known of two sides.

    changes: one for each measure that both know. differs: conditions that are not alike, as
    (name, A's, B's). parted: the first step whose losses differ at all, None where none does.
    alike: whether the runs of each side repeat one training bit for bit. until: the last step that
    both logs have, None where one side is no log or they do not count the same. meet: whether the
    first pair has a step in common.
    """

    changes: tuple[Change, ...]
    differs: tuple[tuple[str, str, str], ...] = ()
    parted: int | None = None
    alike: bool = False
    until: int | None = None
    meet: bool = True
    runs: int = 1
    steps: tuple[int, int] = (0, 0)
    losses: tuple[tuple[float, ...], tuple[float, ...]] = field(default=((), ()), repr=False)
    times: tuple[tuple[float, ...], tuple[float, ...]] = field(default=((), ()), repr=False)

    @property
    def worse(self) -> tuple[Change, ...]:
        """What B is worse in than was stated."""
        return tuple(change for change in self.changes if change.outcome == "worse")


def compare_sides(
    a: Sequence[Trace[Any]], b: Sequence[Trace[Any]], margins: Mapping[str, Margin]
) -> Comparison:
    """
    Compare the runs of two sides, pair by pair.

    The margin of the loss is held against the evaluations where both sides measure the loss in
    them, and against the training otherwise. Raises DeclarationError for a margin without anything
    that it could be held against.
    """
    differs = tuple(_differences(a[0].conditions, b[0].conditions))
    until = _last_of_both(a, b)
    if until is not None:
        shared = _shared_steps(a, b)
        a, b = ([_keep(run, shared, until) for run in side] for side in (a, b))
    losses = losses_of(a[0]), losses_of(b[0])
    alike = len(a) > 1 and all(
        _same(losses_of(x), losses_of(y)) for side in (a, b) for x, y in pairwise(side)
    )
    changes = {}
    for measure in MEASURES:
        change = _measure_change(measure, a, b, alike)
        if change is not None:
            changes[measure] = change
    for measure, given in margins.items():
        held = "evaluated" if measure == "loss" and "evaluated" in changes else measure
        if held not in changes:
            raise DeclarationError(
                f"--{measure}-margin cannot be held against anything: {measure} is not known of"
                " both sides. Leave it out, or let both record it."
            )
        changes[held] = apply_margin(changes[held], given)
    return Comparison(
        changes=tuple(changes.values()),
        differs=differs,
        parted=_find_parting(*losses) if until is None else _find_step(a[0], b[0]),
        until=until,
        meet=until is None or not _steps(a[0]).isdisjoint(_steps(b[0])),
        alike=alike,
        runs=len(a),
        steps=(len(losses[0]), len(losses[1])),
        losses=losses,
        times=(times_of(a[0]), times_of(b[0])),
    )


def _last_of_both(a: Sequence[Trace[Any]], b: Sequence[Trace[Any]]) -> int | None:
    """Return the last step that all logs have; None where not all are logs that count the same."""
    units = {run.conditions.get("unit") for run in (*a, *b)}
    if len(units) > 1 or None in units:
        return None
    return min(max((e.step for e in run if isinstance(e, Step)), default=0) for run in (*a, *b))


def _shared_steps(a: Sequence[Trace[Any]], b: Sequence[Trace[Any]]) -> frozenset[int]:
    """Return the steps that all logs have; those of any where they have too few in common."""
    told = [_steps(run) for run in (*a, *b)]
    shared = frozenset[int].intersection(*told)
    enough = len(shared) >= 2 * _BLOCKS or all(len(steps) < 2 * _BLOCKS for steps in told)
    return shared if shared and enough else frozenset().union(*told)


def _steps(run: Trace[Any]) -> frozenset[int]:
    """Return the steps that a run has a row of."""
    return frozenset(e.step for e in run if isinstance(e, Step))


def _keep(run: Trace[Any], steps: frozenset[int], last: int) -> Trace[Any]:
    """Return a log at some steps: the end of a run is not held against the middle of another."""
    kept = [
        e
        for e in run
        if (not isinstance(e, Step) or e.step in steps)
        and (not isinstance(e, Step | Evaluation) or e.step <= last)
    ]
    return replace(run, events=tuple(kept))


def _find_step(a: Trace[Any], b: Trace[Any]) -> int | None:
    """Return the first step that both logs have and whose losses differ."""
    before = {e.step: e.loss for e in a if isinstance(e, Step) and e.losses}
    told = (e for e in b if isinstance(e, Step) and e.losses and e.step in before)
    return next((e.step for e in told if _find_parting((before[e.step],), (e.loss,)) == 0), None)


def losses_of(trace: Trace[Any]) -> tuple[float, ...]:
    """Return the losses of the steps of a run, in order."""
    return tuple(event.loss for event in trace if isinstance(event, Step) and event.losses)


def times_of(trace: Trace[Any]) -> tuple[float, ...]:
    """
    Return the seconds of each step of a run but the first of each optimizer.

    That one holds imports and the making of the model. Windows of several optimizers overlap, so
    that each counts for its share.
    """
    made: dict[str, list[float]] = {}
    for event in trace:
        if isinstance(event, Step) and event.seconds > 0:
            made.setdefault(event.optimizer, []).append(event.seconds)
    return tuple(second / len(made) for own in made.values() for second in own[1:] or own)


def _measure_change(
    measure: str, a: Sequence[Trace[Any]], b: Sequence[Trace[Any]], alike: bool
) -> Change | None:
    """Return how a measure differs, or None where not all runs know it."""
    first, second = ([_typical(measure, run) for run in side] for side in (a, b))
    mine, theirs = ([v for v in side if v is not None] for side in (first, second))
    if len(mine) < len(first) or len(theirs) < len(second):
        return None
    if not all(map(math.isfinite, mine)):
        raise DeclarationError(
            f"The {measure} of A is not finite, so that nothing can be worse. Compare with a run"
            " that trains."
        )
    paired, pairs = "runs", list(zip(mine, theirs, strict=True))
    if alike and measure in ("loss", "evaluated"):  # so often the same numbers are one pair
        pairs = pairs[:1]
    if len(pairs) == 1 and (blocks := _blocks(measure, a[0], b[0])):
        paired, pairs = "blocks of steps", blocks
    if not all(map(math.isfinite, theirs)):
        pairs = [(mean(mine), math.nan)]
    by, low, high = (_by_ratio if measure == "time" else _by_difference)(pairs)
    return Change(
        measure=measure,
        a=mean(mine),
        b=mean(theirs),
        by=by,
        low=low,
        high=high,
        pairs=len(pairs),
        paired=paired,
    )


def _by_difference(pairs: Pairs) -> tuple[float, float, float]:
    """Return the mean difference of some pairs, and the ends of its interval."""
    differences = [late - early for early, late in pairs]
    return mean(differences), *interval(differences)


def _by_ratio(pairs: Pairs) -> tuple[float, float, float]:
    """Return the same by ratios: what else a machine has to do makes a run slower by a share."""
    ratios = [math.log(late / early) for early, late in pairs]
    of = mean(early for early, _ in pairs)
    by, low, high = (of * math.expm1(x) for x in (mean(ratios), *interval(ratios)))
    return by, low, high


def _typical(measure: str, trace: Trace[Any]) -> Value:
    """Return what is typical of a run, or None where it does not say."""
    steps = [event for event in trace if isinstance(event, Step)]
    if measure == "loss":
        losses = losses_of(trace)
        return mean(losses[-_tail(len(losses)) :]) if losses else None
    if measure == "time":
        times = times_of(trace)
        return _quick(times) if times else None
    if measure == "memory":
        return float(max((step.memory for step in steps), default=0)) or None
    last = [e for e in trace if isinstance(e, Evaluation) and e.measures and not e.routine]
    known = [e.loss for e in last if e.step == last[-1].step]
    return mean(known) if known else None


def _tail(count: int) -> int:
    """Return how many of so many steps are the end of a run."""
    return min(count, max(_BLOCKS, round(_TAIL * count)))


def _blocks(measure: str, a: Trace[Any], b: Trace[Any]) -> list[tuple[float, float]]:
    """Return pairs of blocks of steps in which two single runs can be compared, none if none."""
    if measure == "loss":
        series = [losses[-_tail(len(losses)) :] for losses in (losses_of(a), losses_of(b))]
    else:
        series = [times_of(a), times_of(b)] if measure == "time" else [(), ()]
    typical: Callable[[Sequence[float]], float] = _quick if measure == "time" else mean
    count = min(_BLOCKS, *map(len, series))
    return list(zip(*([typical(block) for block in _cut(s, count)] for s in series), strict=True))


def _quick(times: Sequence[float]) -> float:
    """Return the lower quartile: of all that a machine does beside, most is in the slower steps."""
    return sorted(times)[len(times) // 4]


def _cut(values: Sequence[float], count: int) -> Iterator[Sequence[float]]:
    """Cut values into so many blocks of about one length."""
    for block in range(count):
        yield values[block * len(values) // count : (block + 1) * len(values) // count]


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Say whether two runs have the same losses, bit for bit."""
    return len(a) == len(b) and _find_parting(a, b) is None


def _find_parting(a: Sequence[float], b: Sequence[float]) -> int | None:
    """Return the first step whose losses differ, nan being like nan; None where none does."""
    pairs = enumerate(zip(a, b, strict=False))
    unlike = (i for i, (x, y) in pairs if x != y and not (math.isnan(x) and math.isnan(y)))
    return next(unlike, None)


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the conditions that are not alike, except what a run always has of its own."""
    for name in CONDITIONS:
        if a.get(name) != b.get(name):
            yield name, _format_condition(a.get(name)), _format_condition(b.get(name))
    if "environment" in a and "environment" in b:
        mine, theirs = dict(a["environment"]), dict(b["environment"])
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                yield name, mine.get(name, "not set"), theirs.get(name, "not set")
    for group in ("versions", "settings"):
        mine, theirs = (dict(side.get(group, ())) for side in (a, b))
        for name in sorted({*mine, *theirs}) if mine and theirs else ():
            if mine.get(name) != theirs.get(name):
                yield name, mine.get(name, "unknown"), theirs.get(name, "unknown")


def _format_condition(condition: Any) -> str:
    """Write a condition."""
    if isinstance(condition, tuple):
        return ", ".join(map(str, condition)) or "none"
    return "unknown" if condition is None else str(condition)
