"""Judgements that compare drives: before and after a resume, with and without each scheduler."""

from collections.abc import Iterator
from math import isfinite, isnan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Tick, Trace
from trainguard.invariants.schedule.run import ROUNDING, ScheduleRun, drives, once
from trainguard.invariants.wording import number

_RESUMED = ("resumed", "rebuilt", "unsaved", "unloaded")


@invariant("schedule", probe="resume", per="subject")
def resume_continues_the_schedule(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    A resumed schedule continues at the rates it would have had without interruption.

    Judges: the rates after `torch.save` and `torch.load` of the state of the optimizer and of
        each scheduler, at a step of the warmup and in the middle of the run.
    Allows: rounding, 1e-6 of the rate (limit). A function of the step has no state and passes. One
        that counts its own steps, without a state_dict, is a note: a training may advance it anew.
        It cannot do so with a rule that waits for metrics.
    Misses: checkpoints that leave the schedule out; loading under `weights_only=True`; state that
        matters at other steps only, or more than 20,000 steps after the one it was saved at.
    Why: a forgotten counter restarts the warmup or the patience at every preemption.
    Source: huggingface/pytorch-image-models issue 871 (the state of the plateau rule is not saved).
    """
    yield from once(_discontinuities(trace))


def _discontinuities(trace: Trace[Tick]) -> Iterator[Finding]:
    """Yield a finding for the first rate of each resumed drive that differs."""
    runs = {run.ticks[0].case: run for run in drives(trace, "run")}
    most = trace.limit("resume_continues_the_schedule", ROUNDING)
    for resumed in drives(trace, *_RESUMED):
        tick = resumed.ticks[0]
        if tick.phase in ("unsaved", "unloaded"):
            verb = tick.phase.removeprefix("un")
            yield Finding(
                f"the state of `{trace.subject}` cannot be {verb}",
                resumed.at(0),
                tick.label,
                "a round trip through torch.save and torch.load",
                event=tick,
            )
        elif tick.case in runs:
            yield from _first_difference(runs[tick.case], resumed, most)


def _first_difference(run: ScheduleRun, resumed: ScheduleRun, most: float) -> Iterator[Finding]:
    """Yield a finding for the first step at which a resumed drive leaves the uninterrupted one."""
    rates = {tick.step: tick.rates for tick in run.ticks}
    forgotten = resumed.ticks[0].phase == "rebuilt"
    repeatable = forgotten and all(isnan(tick.metric) for tick in run.ticks)
    for index, tick in enumerate(resumed.ticks):
        for group, (was, now) in enumerate(zip(rates[tick.step], tick.rates, strict=False)):
            if isfinite(was) and not abs(was - now) <= most * max(abs(was), abs(now)):
                yield Finding(
                    f"`{run.trace.subject}` does not continue after a resume",
                    resumed.at(index, group) + f", {resumed.label}",
                    number(now),
                    number(was) + ", as without the interruption",
                    why="it has no state_dict, so a checkpoint forgets where it stood"
                    + (", unless the training advances it by as many steps" if repeatable else "")
                    if forgotten
                    else "a part of its state is not saved, or not restored",
                    rank=Rank.NOTE if repeatable else Rank.BROKEN,
                    event=tick,
                )
                return


@invariant("schedule", probe="overwrite", per="subject")
def schedulers_do_not_fight(trace: Trace[Tick]) -> Iterator[Finding]:
    """
    No scheduler overwrites the effect of another on the same optimizer.

    Judges: each of several schedulers by leaving it out: where it moves the rate on its own, the
        run must be different without it.
    Allows: schedulers that multiply, take turns or agree; one may lose 80 % of its effect
        (limit: the share that must be left, 0.2).
    Misses: schedulers inside another one; what is lost at a few steps only, or after 20,000; rates
        set by hand.
    Why: the scheduler that is stepped last writes its own rate over what the others did.
    Source: PyTorch, torch.optim, on chaining schedulers: each works on the rate that the others
        leave.
    """
    yield from once(_undone(trace))


def _undone(trace: Trace[Tick]) -> Iterator[Finding]:
    """Yield a finding for each scheduler whose effect is gone beside the others."""
    together = {run.ticks[0].case: run for run in drives(trace, "together")}
    still = {run.ticks[0].case: run for run in drives(trace, "still")}
    alone = {(run.ticks[0].case, run.label): run for run in drives(trace, "alone")}
    least = trace.limit("schedulers_do_not_fight", 0.2)
    for without in drives(trace, "without"):
        case, name = without.ticks[0].case, without.label
        own = _distance(alone[case, name], still[case])
        left = _distance(together[case], without)
        if own < 0.01 or left >= least * own or _distance(together[case], alone[case, name]) < 0.01:
            continue
        index = _farthest(alone[case, name], still[case])
        yield Finding(
            f"the work of {name} in `{trace.subject}` is undone by another scheduler",
            together[case].at(index),
            "it changes the rate by " + number(100 * left, "%", ".2g"),
            number(100 * own, "%", ".2g") + " as on its own",
            why="the scheduler stepped after it sets the rate without regard to what it finds;"
            " SequentialLR or ChainedScheduler combine them",
            event=together[case].ticks[index],
        )


def _distance(one: ScheduleRun, other: ScheduleRun) -> float:
    """Return how far apart the rates of two drives are on average, relative to the larger."""
    apart = [difference for tick in _differences(one, other) for difference in tick]
    return sum(apart) / len(apart) if apart else 0.0


def _farthest(one: ScheduleRun, other: ScheduleRun) -> int:
    """Return the index at which two drives are farthest apart."""
    apart = [max(tick) for tick in _differences(one, other)]
    return apart.index(max(apart))


def _differences(one: ScheduleRun, other: ScheduleRun) -> list[list[float]]:
    """Return the relative differences of two drives, for each tick and group."""
    return [
        [abs(a - b) / (max(abs(a), abs(b)) or 1.0) for a, b in zip(s.rates, t.rates, strict=False)]
        for s, t in zip(one.ticks, other.ticks, strict=False)
    ]
