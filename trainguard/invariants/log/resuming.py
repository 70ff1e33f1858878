"""Judgements of what a log shows where a run was resumed."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.events.base import Event
from trainguard.events.log import LogPart
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import (
    LOSSES,
    RATES,
    RESUMES,
    Points,
    at,
    losses,
    parts,
    rates,
    spread,
    typical,
)
from trainguard.invariants.loop.evidence import both
from trainguard.invariants.wording import number

_ROUNDING = 1e-3  # of a rate: what logs write has four digits or more
_FEW = 3
_LEAP = 1.5  # times the rate before: usual schedules move less within a few rows
_WINDOW = 20  # rows on either side
_FAR = 4096  # rows among which another leap is looked for
_JUMP = 8.0  # times the spread of the losses around it
_TREND = 2.0  # times what the loss moved by in the rows before
_DIP = 0.03  # of the loss, where it leaps back later: two windows tell more than one
_SHARE = 0.1  # of the loss: less is the noise of few rows


@invariant("log", evidence=both(RESUMES, RATES))
def rate_continues_after_resume(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A resumed run continues at the learning rate that it had before.

    Judges: the rates after a resume: broken where they are those of the run's beginning again, at 3
        rows, though the run had other rates by then, or where 3 steps that are said again have
        other rates than before. A note where the rate leaps by 1.5 times and no step tells.
    Allows: 0.1 % (limit) of the rate.
    Misses: a schedule that is a little off, where no step is said again.
    Why: a scheduler whose state is not in the checkpoint warms up again over weights that are half
        trained, and the run that was paid for is lost.
    Source: Lightning-AI/pytorch-lightning issue 5486; IntelLabs/distiller issue 145.
    """
    near = trace.limit("rate_continues_after_resume", _ROUNDING)
    told = rates(trace)
    for part in parts(trace)[1:]:
        before = [p for p in told if p[0].case < part.case]
        after = [p for p in told if p[0].case == part.case]
        if before and after:
            yield from _compare(trace, part, before, after, near)


def _compare(
    trace: Trace[Any], part: LogPart, before: Points, after: Points, near: float
) -> Iterator[Finding]:
    """Yield a finding where the rates of a part do not go on from those before."""
    old = {step: rate for step, _, rate in part.replaced if isfinite(rate)}
    again = [(row, rate, old[row.step]) for row, rate in after if row.step in old]
    false = [(row, rate, was) for row, rate, was in again if _differs(rate, was, near)]
    first, last = after[0][1], before[-1][1]
    if len(false) >= _FEW and 2 * len(false) > len(again):
        row, rate, was = false[0]
        words = number(rate) + f", in {len(false)} of {len(again)} steps that are said again"
        yield _finding(trace, part, row, words, number(was), Rank.BROKEN)
    elif len(again) < _FEW and _begins_again(before, after, near):
        words = number(first) + ", as at the beginning of the run"
        yield _finding(trace, part, after[0][0], words, "about " + number(last), Rank.BROKEN)
    elif not again and max(first, last) > _LEAP * min(first, last):
        yield _finding(trace, part, after[0][0], number(first), "about " + number(last), Rank.NOTE)


def _differs(a: float, b: float, near: float) -> bool:
    """Say whether two rates are not the same."""
    return abs(a - b) > near * max(abs(a), abs(b))


def _begins_again(before: Points, after: Points, near: float) -> bool:
    """Say whether the rates of a part are those of the beginning, which had long been left."""
    pairs = [(a, b) for (_, a), (_, b) in zip(before, after, strict=False)][:_FEW]
    same = len(pairs) == _FEW and not any(_differs(a, b, near) for a, b in pairs)
    moves = len({rate for _, rate in before}) >= _FEW
    return same and moves and _differs(before[-1][1], after[0][1], 100 * near)


def _finding(
    trace: Trace[Any], part: LogPart, row: Any, measured: str, allowed: str, rank: Rank
) -> Finding:
    """Return the finding about the rate after a resume."""
    return Finding(
        f"the learning rate of `{trace.subject}` does not go on where it was after a resume",
        at(trace, row),
        measured,
        allowed,
        why="the state of the scheduler may not be saved, or not be loaded before its first step",
        rank=rank,
        event=row,
        source=part.source,
    )


@invariant("log", evidence=both(RESUMES, LOSSES))
def loss_continues_after_resume(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A resumed run continues at the loss that it had before.

    Judges: the median loss of 20 rows after a resume against that of 20 rows before it. Where the
        loss still falls: whether it lies below the line of the 60 rows before, and leaps back up
        by half as much or more at once later.
    Allows: 8 times (limit) the spread of such a median, a tenth of the loss, and twice what it
        moved in as many rows before; where it leaps back, 8 times the spread, and 3 % of the loss.
        A fall like one before, as at the end of each epoch. What is found is a note.
    Misses: a leap that is over within ten rows; samples that are served again where the log ends
        before fresh ones come.
    Why: a loss that leaps up was resumed without its weights or its optimizer's state; one that
        leaps down sees the samples of the same epoch again.
    Source: NVIDIA-NeMo/Megatron-Bridge issue 4565; kdexd/virtex issue 18.
    """
    most = trace.limit("loss_continues_after_resume", _JUMP)
    told = losses(trace)
    for part in parts(trace)[1:]:
        before = [p for p in told if p[0].case < part.case]
        after = [p for p in told if p[0].case >= part.case]
        if min(len(before), len(after)) >= _WINDOW // 2:
            leap = _leap(before, after[:_WINDOW], most) or _dip(before, after, most)
            yield from _leaps(trace, part, after[0][0], leap)


Leap = tuple[float, float, float]  # what the loss is after a resume, was before, and may differ by


def _leap(before: Points, after: Points, most: float) -> Leap | None:
    """Return by how much the loss leaps at a resume, or nothing where it does not."""
    last, trend = before[-_WINDOW:], before[-2 * _WINDOW : -_WINDOW]
    was, now = typical(last), typical(after)
    noise = max(spread(v for _, v in last), spread(v for _, v in after))
    moved = abs(typical(trend) - was) if trend else 0.0
    allowed = max(most * noise / len(after) ** 0.5, _SHARE * abs(was), _TREND * moved)
    alike = now < was and _steepest(before, -1) > (was - now) / 2
    return (now, was, allowed) if abs(now - was) > allowed and not alike else None


def _steepest(told: Points, way: int) -> float:
    """Return the most that the loss leaps up (1) or down (-1), over and above its course there."""
    told, most = told[-_FAR:], 0.0
    for n in range(2 * _WINDOW, len(told) - 2 * _WINDOW + 1):
        a, b, c, d = (typical(told[n + k * _WINDOW :][:_WINDOW]) for k in (-2, -1, 0, 1))
        most = max(most, way * (c - b - (b - a + d - c) / 2))
    return most


def _dip(before: Points, after: Points, most: float) -> Leap | None:
    """Return by how much the loss lies below its course after a resume, and leaps back later."""
    if len(before) < 2 * _WINDOW or len(after) < 2 * _WINDOW:
        return None
    course = _Course(before[-3 * _WINDOW :])
    noise = spread(value - course.at(row.step) for row, value in before[-3 * _WINDOW :])
    allowed = max(most * noise / _WINDOW**0.5, _DIP * abs(typical(before[-_WINDOW:])))
    first = after[:_WINDOW]
    was, now = course.at(first[_WINDOW // 2][0].step), typical(first)
    if was - now <= allowed:
        return None
    back = _steepest(after[:_FAR], 1)
    return (now, was, allowed) if back > max(allowed, (was - now) / 2) else None


class _Course:
    """The line that a loss goes along, by the medians of the first and the last third of it."""

    def __init__(self, told: Points) -> None:
        third = max(1, len(told) // 3)
        first, last = told[:third], told[-third:]
        self._from, self._level = first[third // 2][0].step, typical(first)
        self._slope = (typical(last) - self._level) / (last[third // 2][0].step - self._from or 1)

    def at(self, step: int) -> float:
        """Return the loss on the line at a step."""
        return self._level + self._slope * (step - self._from)


def _leaps(trace: Trace[Any], part: LogPart, row: Any, leap: Leap | None) -> Iterator[Finding]:
    """Yield the note of a loss that leaps at a resume."""
    if leap is not None:
        now, was, allowed = leap
        up = now > was
        yield note(
            f"the loss of `{trace.subject}` leaps {'up' if up else 'down'} at a resume",
            at(trace, row),
            number(now),
            number(was) + f", give or take {allowed:.4g}",
            why="the weights or the state of the optimizer may not be loaded"
            if up
            else "the samples of this epoch may be served again, so that the loss is falsely low",
            event=row,
            source=part.source,
        )
