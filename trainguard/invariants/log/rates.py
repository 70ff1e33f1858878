"""Judgement of the learning rates of a log: one schedule, which leaves its warm-up."""

from collections.abc import Iterator
from itertools import pairwise

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import RATES, Points, at, rates
from trainguard.invariants.loop.wording import percent
from trainguard.invariants.wording import number

_LEAST = 10  # rows with a rate
_LOW, _HIGH = 0.5, 0.8  # of the peak: where a decay has begun, and where it is undone again
_ALONE = 3.0  # times both its neighbours
_REACHED = 0.9  # of the promised peak


@invariant("log", evidence=RATES)
def rate_follows_one_schedule(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The rate warms up once, reaches its peak and decays once.

    Judges: logs of 10 rows with a rate or more: a rate that falls below 0.5 of its peak and climbs
        above 0.8 of it again; a single row at 3 times (limit) both its neighbours; a rate that
        still rises in the last row as in all before; with promise peak, a highest rate below 0.9
        of it.
    Allows: what a plateau, a step, a line, a cosine or an exponential does. What is found is a
        note: restarts may be meant, and a log may end early.
    Misses: a wrong shape that goes up once and down once.
    Why: a cosine that restarts every 8 updates, or a warm-up counted in epochs, looks like training
        that is merely slow.
    Source: the post-mortems multi-domain-vjepa3d (restarts) and flat-loss-autoencoder (15 % of the
        rate after 15 epochs); pytorch/pytorch issue 65417.
    """
    told = rates(trace)
    if len(told) < _LEAST or min(rate for _, rate in told) < 0:
        return
    yield from _climbs(trace, told)
    yield from _stands_out(trace, told)
    yield from _never_warm(trace, told)


def _climbs(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note where a rate that had decayed is back near its peak."""
    peak = max(rate for _, rate in told)
    down, times, first, reached = False, 0, told[0][0], False
    for (before, _), (row, rate) in pairwise(told):
        goes_on = before.case == row.case  # a resume has a judgement of its own
        down, reached = down and goes_on, (reached and goes_on) or rate >= _HIGH * peak
        if reached and rate < _LOW * peak:
            down = True
        elif down and rate >= _HIGH * peak:
            down, times = False, times + 1
            first = row if times == 1 else first
    if times:
        yield Finding(
            f"the learning rate of `{trace.subject}` climbs back to its peak",
            at(trace, first),
            integer(times, "times") + f", each time from below half of {number(peak)}",
            integer(0) + " times: one warm-up, one decay",
            why="a scheduler with restarts, a cosine past its end, or epochs taken for steps",
            rank=Rank.NOTE,
            event=first,
        )


def _stands_out(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note for a row whose rate is far above those around it."""
    most = trace.limit("rate_follows_one_schedule", _ALONE)
    for (_, before), (row, rate), (_, after) in zip(told, told[1:], told[2:], strict=False):
        if row.span == 1 and rate > most * before > 0 and rate > most * after > 0:
            yield Finding(
                f"one step of `{trace.subject}` has a rate far above those around it",
                at(trace, row),
                number(rate),
                "at most " + number(most * max(before, after)),
                why="perhaps two schedulers, where one gives over to the other",
                rank=Rank.NOTE,
                event=row,
            )
            return


def _never_warm(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note where the rate has not left its warm-up when the log ends."""
    values = [rate for _, rate in told]
    top, peak = max(values), trace.promise("peak")
    rises = all(b >= a for a, b in pairwise(values)) and values[-1] > values[-2]
    rises = rises and values[-1] > 1.05 * values[0]
    low = peak is not None and top < _REACHED * peak
    if low and peak is not None:
        yield Finding(
            f"the learning rate of `{trace.subject}` never reaches its peak",
            at(trace, told[-1][0]),
            percent(top / peak) + f" of it: {number(top)}",
            Measure(f"at least {100 * _REACHED:g} %", 100 * _REACHED, "%") + f" of {number(peak)}",
            why="its warm-up may be counted in another unit, or the scheduler not be advanced",
            rank=Rank.NOTE,
            event=told[-1][0],
        )
    elif rises:
        yield Finding(
            f"the learning rate of `{trace.subject}` has not left its warm-up when the log ends",
            at(trace, told[-1][0]),
            number(values[-1]) + f", rising since {number(values[0])} in all {len(told)} rows",
            "a peak before the end",
            why="its warm-up may be counted in another unit than it is advanced in, or be too long",
            rank=Rank.NOTE,
            event=told[-1][0],
        )
