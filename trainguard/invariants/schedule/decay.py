"""Judgements of the decay: its direction, its floor, and the horizon at which it ends."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.trace import Tick, Trace
from trainguard.invariants.schedule.run import ROUNDING, ScheduleRun, once, sound_runs
from trainguard.invariants.wording import number

_FALLING = ("warmup-decay", "one-cycle", "plateau")
_DECAYING = ("warmup-decay", "one-cycle")


@invariant("schedule", per="subject", needs=["shape"])
def decay_never_rises(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate does not rise again once it has begun to decay.

    Judges: each parameter group from its first fall on, after the promised warmup or after the
        highest rate is first reached, where the shape is warmup-decay, one-cycle or plateau.
    Allows: rounding, 1e-6 of the peak; any rise in the other shapes.
    Misses: a restart that comes after the promised total.
    Why: a cosine that restarts climbs back to its peak in the middle of a run that had settled.
    Source: automl/Auto-PyTorch issue 211 (a schedule of epochs that is advanced with each batch
        starts anew).
    """
    yield from once(f for run in sound_runs(trace) for f in _rises(run))


def _rises(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the first rise of each group after the warmup."""
    shape = run.word("shape")
    if shape not in _FALLING:
        return
    start = 0 if shape == "plateau" and not run.promise("warmup") else run.warmup_end
    for group in run.groups:
        rates = run.rates(group)
        slack = ROUNDING * max(rates)
        steps = range(start + 1, len(rates))
        begun = next((i for i in steps if rates[i] < rates[i - 1] - slack), len(rates))
        rise = next((i for i in steps[begun - start :] if rates[i] > rates[i - 1] + slack), None)
        if rise is not None:
            yield Finding(
                f"the rate of `{run.trace.subject}` rises again after it has decayed",
                run.at(rise, group),
                number(rates[rise - 1])
                + f" to {number(rates[rise])}, later {number(max(rates[rise:]))}",
                "no rise after the warmup",
                why='it restarts, or goes on past its own end; shape="restarts" allows it',
                event=run.ticks[rise],
            )


@invariant("schedule", per="subject", needs=["floor"])
def floor_is_kept(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate does not fall below the promised floor.

    Judges: each parameter group that learns, after the promised warmup or the highest rate, until
        the promised total.
    Allows: 1 % below the floor (limit).
    Misses: a floor that is never reached, because the decay ends above it.
    Why: the last part of a run is spent at a rate too small to change anything.
    Source: PyTorch, torch.optim.lr_scheduler.CosineAnnealingLR (eta_min).
    """
    yield from once(f for run in sound_runs(trace) for f in _below_floor(run))


def _below_floor(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the first rate of each group that is below the floor."""
    floor = run.promise("floor") or 0.0
    least = floor * (1 - run.trace.limit("floor_is_kept", 0.01))
    for group in run.groups:
        rates = run.rates(group)
        below = [i for i in range(run.warmup_end, len(rates)) if rates[i] < least]
        if below:
            yield Finding(
                f"the rate of `{run.trace.subject}` falls below its floor",
                run.at(below[0], group),
                number(rates[below[0]]) + f", later {number(min(rates[i] for i in below))}",
                ">= " + number(least),
                event=run.ticks[below[0]],
            )


@invariant("schedule", per="subject", needs=["total"])
def horizon_matches_units(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The schedule is as long as the run, counted in the unit that advances it.

    Judges: for every shape, whether the schedule refuses to go on before the total; for
        warmup-decay and one-cycle also when it ends, and how far it has decayed by the total.
    Allows: an end after 25 % of the total (limit); a decay of 5 % of the way from peak to floor.
    Misses: a mistake of less than a factor of four; shapes that do not decay; decays of less than
        3 steps, of less than 20 where their length is drawn.
    Why: lengths in epochs and steps by the step end the decay in the first minutes; the reverse
        keeps the run in its warmup for days.
    Source: A4Bio/PiFold issue 6; ivadomed/ivadomed pull request 55 (advanced with each batch
        instead of each epoch).
    """
    yield from once(f for run in sound_runs(trace) for f in _wrong_horizon(run))


def _wrong_horizon(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding where a run ends before its total, or decays far too early or late."""
    total = int(run.promise("total") or 0)
    last = len(run.ticks) - 1
    if len(run.ticks) < total:
        yield Finding(
            f"`{run.trace.subject}` ends before the run does",
            run.at(last),
            integer(len(run.ticks), f"{run.word('unit') or 'step'}s"),
            integer(total),
            why=_unit_hint(run, len(run.ticks)),
            event=run.ticks[last],
        )
    elif run.word("shape") in _DECAYING:
        yield from _wrong_decay(run, total)


def _wrong_decay(run: ScheduleRun, total: int) -> Iterator[Finding]:
    """Yield a finding where the decay has hardly begun by the total, or is over long before."""
    rates, top = run.highest, run.top
    way = top - (run.promise("floor") or 0.0)
    low = min(rates[run.crest :])
    if total - (run.promise("warmup") or 0) < _shortest(run):
        return
    if max(rates) - low < 0.05 * way:
        rising = run.crest == len(rates) - 1
        if rates[-1] <= top - 0.05 * way and not rising:
            return  # it never came near its peak: what is low is no decay
        yield Finding(
            f"`{run.trace.subject}` has hardly decayed when the run ends",
            run.at(len(rates) - 1),
            number(rates[-1]),
            "past its peak of " + number(top) if rising else "<= " + number(top - 0.05 * way),
            why=_unit_hint(run, total),
            event=run.ticks[-1],
        )
        return
    end = _end(rates, run.crest, top)
    share = run.trace.limit("horizon_matches_units", 0.25)
    if end + 1 < share * total:
        yield Finding(
            f"the decay of `{run.trace.subject}` is over long before the run is",
            run.at(end),
            "over after " + portion(end, total) + f" {run.word('unit') or 'step'}s",
            "not before " + integer(share * total),
            why=_unit_hint(run, end),
            event=run.ticks[end],
        )


def _shortest(run: ScheduleRun) -> int:
    """Return how many steps a decay needs to be judged: what is drawn may leave it hardly any."""
    return 20 if run.is_drawn("warmup") or run.is_drawn("total") else 3


def _end(rates: list[float], crest: int, top: float) -> int:
    """Return where a decay is over: constant from there on, or the bottom of a first cycle."""
    low = min(rates[crest:])
    moving = (i for i in range(len(rates) - 1, crest, -1) if rates[i - 1] > low + 1e-9 * top)
    still = next(moving, crest)
    bottom = next(i for i in range(crest, len(rates)) if rates[i] <= low + 1e-3 * top)
    return bottom if max(rates[bottom:]) > rates[bottom] + 0.1 * top else still


def _unit_hint(run: ScheduleRun, length: int) -> str:
    """Guess which unit was taken for which."""
    total, per_epoch = run.promise("total") or 0.0, run.promise("steps_per_epoch")
    if run.word("unit") == "epoch":
        counted = f", {total * per_epoch:.0f} of them," if per_epoch else ""
        return f"its lengths may be counted in steps{counted} while it is advanced once per epoch"
    if per_epoch and length < total:
        return (
            f"{total:.0f} steps are {number(total / per_epoch)} epochs of {per_epoch:.0f}:"
            " its lengths may be counted in epochs while it is advanced at every step"
        )
    if length < total:
        return "its lengths may be counted in epochs while it is advanced at every step"
    return "its own lengths may be far longer than the run"
