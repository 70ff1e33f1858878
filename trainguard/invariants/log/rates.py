"""Judgement of the learning rates of a log: one schedule, which leaves its warm-up."""

from collections.abc import Iterator
from itertools import pairwise

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import RATES, Points, at, rates, setting, unit
from trainguard.invariants.loop.wording import percent
from trainguard.invariants.wording import number

_LEAST = 10  # rows with a rate
_LOW, _HIGH = 0.5, 0.8  # of the peak: where a decay has begun, and where it is undone again
_ALONE = 3.0  # times both its neighbours
_REACHED = 0.9  # of the peak, or of the warm-up, that is told
_SAME = 1e-3  # of a rate: what logs write has four digits or more
_FEW = 3  # rows
_FALLEN = 0.02  # of the peak at the end: usual floors are far below
_WARM_UPS = ("warmup_steps", "num_warmup_steps", "warmup_iters", "warmup_updates", "n_warmup_steps")
_PEAKS = ("lr", "learning_rate", "peak_lr", "max_lr")


@invariant("log", evidence=RATES)
def rate_follows_one_schedule(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The learning rate warms up once, reaches its peak and decays once.

    Judges: logs of 10 rows with a rate or more: a rate that falls below 0.5 of its peak and climbs
        above 0.8 of it again; a single row at 3 times (limit) both its neighbours; a rate that
        still rises in the last row as in all before; with promise peak, a highest rate below 0.9
        of it. A warm-up that stops, at a rate that stays for good, before 0.9 of the steps or of
        the rate that the settings beside the log tell, or that never begins. A decay that has
        fallen by less than 2 % when the last of the steps that the log tells of is made.
    Allows: what a plateau, a step, a line, a cosine or an exponential does; a log that ends within
        the warm-up that its settings tell. What is found is a note: restarts may be meant, and a
        log may end early.
    Misses: a wrong shape that goes up once and down once; a warm-up that stops where nothing tells
        how far it was to go.
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
    yield from _frozen(trace, told)
    yield from _hardly_falls(trace, told)


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
        yield note(
            f"the learning rate of `{trace.subject}` climbs back to its peak",
            at(trace, first),
            integer(times, "times") + f", each time from below half of {number(peak)}",
            integer(0) + " times: one warm-up, one decay",
            why="a scheduler with restarts, a cosine past its end, or epochs taken for steps",
            event=first,
        )


def _stands_out(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note for a row whose rate is far above those around it."""
    most = trace.limit("rate_follows_one_schedule", _ALONE)
    for (_, before), (row, rate), (_, after) in zip(told, told[1:], told[2:], strict=False):
        if row.span == 1 and rate > most * before > 0 and rate > most * after > 0:
            yield note(
                f"one step of `{trace.subject}` has a rate far above those around it",
                at(trace, row),
                number(rate),
                "at most " + number(most * max(before, after)),
                why="perhaps two schedulers, where one gives over to the other",
                event=row,
            )
            return


def _never_warm(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note where the rate has not left its warm-up when the log ends."""
    values = [rate for _, rate in told]
    top, peak = max(values), trace.promise("peak")
    rises = all(b >= a for a, b in pairwise(values)) and values[-1] > values[-2]
    rises = rises and values[-1] > 1.05 * values[0] and told[-1][0].step >= (_warm_up(trace) or 0)
    low = peak is not None and top < _REACHED * peak
    if low and peak is not None:
        yield note(
            f"the learning rate of `{trace.subject}` never reaches its peak",
            at(trace, told[-1][0]),
            percent(top / peak) + f" of it: {number(top)}",
            Measure(f"at least {100 * _REACHED:g} %", 100 * _REACHED, "%") + f" of {number(peak)}",
            why="its warm-up may be counted in another unit, or the scheduler not be advanced",
            event=told[-1][0],
        )
    elif rises:
        yield note(
            f"the learning rate of `{trace.subject}` has not left its warm-up when the log ends",
            at(trace, told[-1][0]),
            number(values[-1]) + f", rising since {number(values[0])} in all {len(told)} rows",
            "a peak before the end",
            why="its warm-up may be counted in another unit than it is advanced in, or be too long",
            event=told[-1][0],
        )


def _warm_up(trace: Trace[Event]) -> float | None:
    """Return how many steps of warm-up the settings tell, where rows are counted in steps."""
    return setting(trace, _WARM_UPS) if unit(trace) == "step" else None


def _frozen(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note where the settings tell of a warm-up that stops early, or never begins."""
    top = max(rate for _, rate in told)
    first = next(n for n, (_, rate) in enumerate(told) if rate >= (1 - _SAME) * top)
    stays = all(rate >= (1 - _SAME) * top for _, rate in told[first:])
    climbs = all(a < b for (_, a), (_, b) in pairwise(told[: first + 1]))
    if trace.promise("peak") is not None or not stays or not climbs or len(told) - first < _FEW:
        return
    allowed, row = _missed(trace, told, first), told[first][0]
    if allowed is not None:
        yield note(
            f"the learning rate of `{trace.subject}` stays where its warm-up had brought it",
            at(trace, row),
            number(top) + f" from there to {unit(trace)} {told[-1][0].step}",
            allowed + ", as the settings tell",
            why="the scheduler may no longer be advanced, or count its warm-up in another unit",
            event=row,
        )


def _missed(trace: Trace[Event], told: Points, first: int) -> Measure | None:
    """Return the warm-up or the peak that a rate stays short of, which is at its top from first."""
    warm, peak = _warm_up(trace), setting(trace, _PEAKS)
    row, top = told[first]
    if warm is not None:
        within = [step for step, _ in told if step.step < _REACHED * warm]
        early = told[-1][0].step >= warm and len(within) >= _FEW and row.step < _REACHED * warm
        return Measure(f"a warm-up of {warm:g} steps", warm, "steps") if early else None
    early = first >= _FEW and peak is not None and top < _REACHED * peak
    return "up to " + number(peak) if early and peak is not None else None


def _hardly_falls(trace: Trace[Event], told: Points) -> Iterator[Finding]:
    """Yield a note where a decay has hardly begun when the run has made all of its steps."""
    total, last = trace.conditions.get("total"), told[-1][0].step
    if not isinstance(total, int) or not total or last < _REACHED * total:
        return
    values = [rate for _, rate in told]
    falls = values[values.index(max(values)) :]
    fallen = 1 - falls[-1] / falls[0] if falls[0] else 0.0
    if len(set(falls)) >= _FEW and 0 < fallen < _FALLEN and falls == sorted(falls, reverse=True):
        yield note(
            f"the learning rate of `{trace.subject}` has hardly begun to fall when the run ends",
            at(trace, told[-1][0]),
            percent(fallen) + f" below its peak of {number(falls[0])}",
            Measure(f"at least {100 * _FALLEN:g} %", 100 * _FALLEN, "%"),
            why="a schedule as long as all steps may be advanced once for each epoch",
            event=told[-1][0],
        )
