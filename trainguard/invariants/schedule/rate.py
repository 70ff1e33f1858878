"""Judgements of any rate, whatever shape was promised."""

from collections.abc import Iterator
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, integer
from trainguard.events.trace import Tick, Trace
from trainguard.invariants.schedule.run import ROUNDING, ScheduleRun, drives, once, sound_runs
from trainguard.invariants.wording import number


@invariant("schedule", per="subject")
def rate_is_finite_and_positive(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    Every rate is a finite number above zero while the training runs.

    Judges: each parameter group at each step; zeros after the first positive rate only where a
        total is promised, since a schedule is otherwise driven past an end that nobody declared.
    Allows: zero at the start (first_step_learns has it) and at the last step; single zeros where
        restarts are promised; a group that is frozen at zero while another learns. A rate that
        turns negative where no total is promised is a note.
    Misses: a rate that is positive and far too small.
    Why: with a rate of zero nothing is learned and nothing complains; a negative one climbs.
    Source: LINCellularNeuroscience/VAME issue 26 (a gamma of 0 ends the training after 100 epochs).
    """
    yield from once(f for run in drives(trace, "run") for f in _bad_rates(run))


def _bad_rates(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the first rate of each group that is no rate."""
    subject = run.trace.subject
    if not any(rate for tick in run.ticks for rate in tick.rates):
        yield Finding(
            f"the rate of `{subject}` is zero throughout",
            run.at(len(run.ticks) - 1),
            integer(0),
            "> " + integer(0),
            why="the schedule may never be advanced, or its factor may be zero",
            event=run.ticks[-1],
        )
    for group in run.groups:
        rates = run.rates(group)
        wrong = next((i for i, rate in enumerate(rates) if not isfinite(rate) or rate < 0), None)
        if wrong is None:
            yield from _zeros_inside(run, group)
            continue
        sign = "negative" if isfinite(rates[wrong]) else "not finite"
        open_end = sign == "negative" and wrong > 0 and run.promise("total") is None
        yield Finding(
            f"the rate of `{subject}` is {sign}",
            run.at(wrong, group),
            number(rates[wrong]),
            "> " + integer(0) + " and finite",
            why="the run may end before: promise total=..." if open_end else "",
            rank=Rank.NOTE if open_end else Rank.BROKEN,
            event=run.ticks[wrong],
        )


def _zeros_inside(run: ScheduleRun, group: int) -> Iterator[Finding]:
    """Yield a finding for a rate of zero between the first positive rate and the last step."""
    if run.promise("total") is None:
        return
    rates = run.rates(group)
    begun = next((i for i, rate in enumerate(rates) if rate > 0), len(rates))
    zeros = [i for i in range(begun, len(rates) - 1) if rates[i] == 0]
    if run.word("shape") == "restarts":
        zeros = [i for i in zeros if rates[i + 1] == 0]
    if zeros:
        yield Finding(
            f"the rate of `{run.trace.subject}` is zero before the end",
            run.at(zeros[0], group),
            integer(0) + f" at {len(zeros)} of {len(rates)} steps",
            "> " + integer(0) + " until the last step",
            event=run.ticks[zeros[0]],
        )


@invariant("schedule", per="subject")
def first_step_learns(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The first step is taken with a rate above zero.

    Judges: the rates from step 0 on, in each parameter group that learns at all.
    Allows: a rate of zero at step 0 alone is a note, as the schedules of transformers mean it;
        not where the unit is an epoch, in which a whole epoch is lost.
    Misses: a first rate that is positive and too small to matter.
    Why: a warmup of `step / warmup` begins at zero: the first batch, or epoch, teaches nothing.
    Source: EleutherAI/gpt-neox issue 1373; facebookresearch/barlowtwins issue 45.
    """
    yield from once(f for run in sound_runs(trace) for f in _lost_steps(run))


def _lost_steps(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding where the first rates of a group are zero."""
    unit = run.word("unit") or "step"
    for group in run.groups:
        rates = run.rates(group)
        lost = next((i for i, rate in enumerate(rates) if rate > 0), len(rates))
        if lost == 0:
            continue
        note = lost == 1 and unit == "step"
        yield Finding(
            f"the first {unit} of `{run.trace.subject}` is taken with a rate of zero"
            if lost == 1
            else f"the rate of `{run.trace.subject}` starts at zero and stays there",
            run.at(0, group),
            integer(0) + f" for {lost} {unit}{'s' * (lost > 1)}",
            "> " + integer(0) + f" from {unit} 0 on",
            why=f"a warmup of {unit} / warmup begins at zero; ({unit} + 1) / warmup does not"
            if lost == 1
            else "the schedule may never be advanced, or its warmup may begin too late",
            rank=Rank.NOTE if note else Rank.BROKEN,
            event=run.ticks[0],
        )


@invariant("schedule", per="subject")
def rate_changes_smoothly(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate does not leap upwards once the warmup is over.

    Judges: rises from one step to the next after the promised warmup, or after the highest rate
        is first reached where none is promised; at its end, a single step whose rate is far above
        those of both its neighbours.
    Allows: a factor of 2 (limit) or 10 % of the peak; any fall, since drops are by design; any
        rise where restarts are promised; a warmup and a decay by such a factor at each step. Where
        no shape is promised, nor a warmup that ends so, a leap is a note.
    Misses: a tenfold rise spread over several steps; a leap to a new highest rate where neither a
        warmup nor a constant or plateau shape is promised, which cannot be told from a warmup.
    Why: a model that has settled at a low rate and loss is thrown out of it by the old rate.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2: an abrupt
        transition after the warmup makes the error spike.
    """
    yield from once(f for run in sound_runs(trace) for f in _leaps(run))


def _leaps(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the first leap of each group."""
    shape = run.word("shape")
    if shape == "restarts":
        return
    most = run.trace.limit("rate_changes_smoothly", 2.0)
    begun = 0 if shape in ("constant", "plateau") and not run.promise("warmup") else run.warmup_end
    for group in run.groups:
        rates = run.rates(group)
        index = _first_leap(rates, begun, most)
        if index is None:
            continue
        before, after = rates[index - 1 : index + 1]
        spike = index <= begun
        yield Finding(
            f"the rate of `{run.trace.subject}` leaps upwards",
            run.at(index, group),
            Measure(f"{number(before)} to {number(after)}", after / before, "times"),
            "at most " + number(most, "times") + " the rate of the step before",
            why="it falls back at once: warmup and decay may not meet where one ends"
            if spike
            else "a restart, a resumed run or a second schedule may have put the rate back",
            rank=Rank.BROKEN if shape or (spike and run.promise("warmup")) else Rank.NOTE,
            event=run.ticks[index],
        )


def _first_leap(rates: list[float], begun: int, most: float) -> int | None:
    """Return the first leap after the warmup, or at its end, where only a spike is one."""
    for index in range(max(begun - 1, 1), len(rates)):
        before, after = rates[index - 1 : index + 1]
        leap = after > most * before and after - before > 0.1 * max(rates)
        if leap and (index > begun or _is_spike(rates, index, most)):
            return index
    return None


def _is_spike(rates: list[float], index: int, most: float) -> bool:
    """Say whether a rate stands out from both its neighbours, other than by the pace there."""
    if not 1 < index < len(rates) - 2 or not all(rates[index - 2 : index + 3]):
        return False
    sides = [(rates[index + way], rates[index + 2 * way]) for way in (-1, 1)]
    return all(rates[index] > most * near * max(1.0, near / far) for near, far in sides)


@invariant("schedule", per="subject", needs=["constant"])
def constant_rate_is_kept(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    A rate that is promised to be constant stays constant.

    Judges: each parameter group after the promised warmup, or from the first step.
    Allows: rounding, 1e-6 of the rate (limit).
    Misses: a rate that is constant and not the one that was meant, unless a peak is promised.
    Why: a schedule that was thought to be switched off goes on changing the rate.
    Source: LINCellularNeuroscience/VAME issue 26 (a scheduler that was switched off, and multiplied
        by 0).
    """
    yield from once(f for run in sound_runs(trace) for f in _moves(run))


def _moves(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the largest change of each group."""
    most = run.trace.limit("constant_rate_is_kept", ROUNDING)
    start = int(run.promise("warmup") or 0)
    for group in run.groups:
        rates = run.rates(group)
        moved = {i: abs(rates[i] - rates[start]) for i in range(start + 1, len(rates))}
        moved = {i: by for i, by in moved.items() if by > most * rates[start]}
        if moved:
            worst = max(moved, key=lambda i: moved[i])
            yield Finding(
                f"the rate of `{run.trace.subject}` does not stay constant",
                run.at(worst, group) + f", since {run.at(min(moved))}",
                number(rates[worst]),
                number(rates[start]),
                event=run.ticks[worst],
            )


@invariant("schedule", per="subject")
def reported_rate_is_in_force(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    The rate that the schedule reports is the one in the optimizer.

    Judges: `get_last_lr()` against the rates of the parameter groups, for a single scheduler.
    Allows: rounding, 1e-6 of the rate (limit).
    Misses: several schedulers, of which it is not known whose report is logged; rates that are
        computed for a log in some other way.
    Why: the curve in the log is then not the one that the model was trained with.
    Source: pytorch/pytorch issue 22107; warmup-scheduler 0.3, whose report freezes when the warmup
        is over.
    """
    yield from once(f for run in sound_runs(trace) for f in _false_reports(run))


def _false_reports(run: ScheduleRun) -> Iterator[Finding]:
    """Yield a finding for the report that is farthest from the truth."""
    most = run.trace.limit("reported_rate_is_in_force", ROUNDING)
    false = {
        (index, group): abs(true - told)
        for index, tick in enumerate(run.ticks)
        for group, (true, told) in enumerate(zip(tick.rates, tick.reported, strict=False))
        if abs(true - told) > most * max(abs(true), abs(told))
    }
    if false:
        index, group = max(false, key=lambda place: false[place])
        tick = run.ticks[index]
        yield Finding(
            f"`{run.trace.subject}` reports a rate that is not in force",
            run.at(index, group) + f", since {run.at(min(false)[0])}",
            number(tick.reported[group]) + " reported",
            number(tick.rates[group]) + " in the optimizer",
            why="get_last_lr() is not updated when the rate is",
            event=tick,
        )
