"""Judgements of when a scheduler is advanced, and of what its function returns."""

from collections.abc import Iterator
from itertools import combinations

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Scheduler, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import LAMBDAS, SCHEDULERS, has_probe
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    in_line,
    last_word,
    mostly,
)
from trainguard.invariants.wording import number

_FEW_CALLS = 5
_FEW_TOLD = 3
_FEW_TURNS = 2  # advances of two schedulers, from which on it is seen that they come in turns
_ALIKE = ("name", "settings", "optimizer", "calls")
_TOO_OFTEN = 1.5  # calls for each step, from which on it is no matter of order
_ROUNDING = 1e-6
_TINY_FACTOR = 0.02  # no warmup or decay is at its highest so far below its base rate
_USUAL_RATE = 0.05  # rates above it may be there only to be multiplied
_LARGE_RATE = 0.5


@invariant("loop", evidence=SCHEDULERS)
def scheduler_follows_optimizer(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A scheduler is advanced after its optimizer's step, not before.

    Judges: schedulers that were advanced before the first step of their optimizer and go on so:
        after backward and before the step in most steps, or, in a run that came to its end, once
        before the steps and never after the last of them.
    Allows: a first step that a gradient scaler skipped; advancing to where a run is resumed, or
        once past a rate of zero, and then after each step; ReduceLROnPlateau, which has no first
        rate; what the scheduler does while it is made.
    Misses: a scheduler that is advanced at the top of the loop in a run that was stopped early
        or thinned out.
    Why: the first rate of the schedule is skipped, and all others come a step, or an epoch, early.
    Source: the warning of torch.optim.lr_scheduler since PyTorch 1.1, which most logs hide.
    """
    by_name = {course.optimizer: course for course in courses(trace)}
    for scheduler in events(trace, Scheduler):
        course = by_name.get(scheduler.optimizer)
        if course is None or not _hurries(scheduler, course):
            continue
        finished = trace.conditions.get("ended") == "finished"
        if mostly(course.steps, _before_step) or (finished and _leads(scheduler, course)):
            often = scheduler.calls > _TOO_OFTEN * count(course.every)
            yield (_advanced_often if often else _advanced_early)(trace, course, scheduler)


def _lacks_optimizers(trace: Trace[Event]) -> str:
    """Return why no optimizer could go without a scheduler, or nothing."""
    missing = SCHEDULERS(trace)
    return missing or ("" if len(courses(trace)) > 1 else "one optimizer alone made steps")


@invariant("loop", evidence=_lacks_optimizers)
def schedulers_drive_their_own_optimizers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No optimizer gets two identical schedulers while another optimizer has none.

    Judges: schedulers of one class with the same settings and optimizer, which are advanced in
        turns and equally often, twice at least, where another optimizer that steps has none.
    Allows: schedulers that are chained (other classes or settings), or made one after the other; a
        run of one optimizer; optimizers that each keep their rate.
    Misses: functions (LambdaLR); schedulers whose settings differ as well; rates set by hand.
    Why: the rate of one falls twice as fast as is planned, and that of the other one never.
    Source: Lornatang/ESRGAN-PyTorch issue 39.
    """
    made = [s for s in events(trace, Scheduler) if s.settings and s.calls >= _FEW_TURNS]
    driven = {s.optimizer for s in events(trace, Scheduler)}
    idle = [c for c in courses(trace) if c.optimizer not in driven and not c.by_hand]
    for one, other in combinations(made, 2):
        alike = all(getattr(one, key) == getattr(other, key) for key in _ALIKE)
        in_turns = max(one.turns[0], other.turns[0]) < min(one.turns[1], other.turns[1])
        if idle and one.optimizer and alike and in_turns:
            yield Finding(
                f"two schedulers of `{trace.subject}` drive one optimizer, and another has none",
                f"{one.optimizer}, {one.name}",
                integer(2, "schedulers") + f" of the same settings, none of {idle[0].optimizer}",
                integer(1, "scheduler") + " of each",
                why=f"perhaps one of them was to be made with {idle[0].optimizer}",
                event=other,
                source=other.source,
            )
            return


@invariant(
    "loop",
    evidence=has_probe(
        "former optimizer", "no optimizer took the place of another one that had a scheduler"
    ),
)
def schedulers_go_on_with_what_steps(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A scheduler drives the optimizer that makes the steps, not one that was replaced.

    Judges: schedulers that are advanced twice or more, though another optimizer of the same class,
        which has all parameters of theirs and no scheduler, makes all the steps since then.
    Allows: optimizers that get a scheduler of their own, and schedulers that end with theirs.
    Misses: a new optimizer of another class, or with other parameters.
    Why: the log prints a rate that falls, and the steps are made with one that never does.
    Source: Lightning-AI/pytorch-lightning issue 8720, of schedules where layers are thawed.
    """
    for probe in events(trace, Probe):
        if probe.probe == "former optimizer" and probe.measured >= _FEW_TURNS:
            yield Finding(
                f"a scheduler of `{trace.subject}` drives an optimizer that steps no more",
                probe.label,
                integer(int(probe.measured), "advances")
                + f" of {probe.reference:.0f} since another optimizer makes the steps",
                integer(0, "advances") + ", or a scheduler of the new optimizer",
                why="the rate of the new one stays as it was made: make its scheduler where it is"
                " made",
                event=probe,
            )


@invariant("loop", evidence=has_probe("advanced twice", "no scheduler was advanced"))
def schedulers_are_advanced_once(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A scheduler is advanced after each step, or after each epoch, and not both.

    Judges: schedulers that two lines advance: whether one of them does so after nine of ten steps,
        and the other one after some of the same steps, in the first 1024 advances.
    Allows: lines that advance one after different steps, as before and after a warmup; those that
        say at which epoch it is.
    Misses: schedulers that are advanced by three lines, or twice by one.
    Why: a schedule of epochs is over after a few of them, where a call is left over in the loop
        over batches; the loss falls all the same, and stops early.
    Source: pytorch/pytorch issue 22107 (whether step is for epochs or batches);
        Lightning-AI/pytorch-lightning issue 1476.
    """
    for probe in events(trace, Probe):
        if probe.probe == "advanced twice":
            name, _, line = probe.label.partition(", ")
            yield Finding(
                f"a scheduler of `{trace.subject}` is advanced after each step, and once more",
                name + in_line(line),
                integer(int(probe.measured), "steps")
                + f" of {probe.reference:.0f} after which another line has advanced it too",
                integer(0, "steps"),
                why="perhaps one of the lines was moved, and the other one was left: a schedule"
                " counts either steps or epochs",
                event=probe,
                source=probe.source,
            )


def _advanced_early(trace: Trace[Event], course: Course, scheduler: Scheduler) -> Finding:
    """Return the finding of a scheduler that is advanced at the wrong place."""
    step = course.every[0]
    return Finding(
        f"a scheduler of `{trace.subject}` is advanced before its optimizer steps",
        course.at(step) + f", {scheduler.name}",
        portion(scheduler.early, scheduler.calls, "calls") + " before the first step",
        portion(0, scheduler.calls),
        why="scheduler.step() stands before optimizer.step(): the first rate is skipped",
        event=scheduler,
        source=scheduler.source or step.source,
    )


def _advanced_often(trace: Trace[Event], course: Course, scheduler: Scheduler) -> Finding:
    """Return the finding of a scheduler that is advanced there and in other places too."""
    step, made = course.every[0], count(course.every)
    return Finding(
        f"a scheduler of `{trace.subject}` is advanced more often than its optimizer steps",
        course.at(step) + f", {scheduler.name}",
        integer(scheduler.calls, "calls") + f" in {made} steps",
        integer(made, "calls"),
        why="one scheduler.step() belongs to each optimizer.step(), after it; the schedule is over"
        " too early",
        event=scheduler,
        source=scheduler.source or step.source,
    )


def _hurries(scheduler: Scheduler, course: Course) -> bool:
    """Say whether a scheduler was advanced before a first step that was made."""
    begin = course.every[0]
    return (
        scheduler.early > 0
        and scheduler.calls > 1
        and begin.step == 0
        and not begin.skipped
        and "schedule" in begin.order
        and not scheduler.name.startswith("ReduceLROnPlateau")
    )


def _before_step(step: Step) -> bool:
    """Say whether the scheduler was advanced between a step's last backward pass and the step."""
    return last_word(step, "schedule") > last_word(step, "backward") >= 0


def _leads(scheduler: Scheduler, course: Course) -> bool:
    """Say whether a scheduler is advanced once before steps, and not after the last of them."""
    windows = sum("schedule" in step.order for step in course.every)
    whole = count(course.every) == len(course.every)
    return whole and scheduler.early == 1 and scheduler.calls <= windows


@invariant("loop", evidence=LAMBDAS)
def lambda_returns_a_factor(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The function of a LambdaLR returns a multiplier of the base rate, not a rate.

    Judges: a LambdaLR that is alone on its optimizer and advanced 5 times or more, by the largest
        factor that the steps were made with: broken where that is the base rate itself, so that
        the rate in force is its square; a note where it stays below 0.02 over a base rate below
        0.05.
    Allows: 1e-6 (limit) of the base rate; base rates of 0.5 and more, which a function that returns
        rates may divide by; a factor that still rises when the run ends, as in a warmup.
    Misses: functions that return a rate of another size than 0.02 times or 1 times the base rate.
    Why: the rate is then a hundred or a thousand times too small, and training is merely slow.
    Source: lhoyer/MIC issue 60; pytorch/pytorch issue 78917.
    """
    made = events(trace, Scheduler)
    for course in courses(trace):
        own = [each for each in made if each.optimizer == course.optimizer]
        if len(own) != 1 or not own[0].base or own[0].calls < _FEW_CALLS:
            continue
        near = trace.limit("lambda_returns_a_factor", _ROUNDING)
        for base, factors in _factors(own[0], course):
            top = max(factors)
            squared = base < _LARGE_RATE and abs(top - base) <= near * base
            tiny = 0 < top <= _TINY_FACTOR and base <= _USUAL_RATE
            if (squared or tiny) and not _rises_to_the_end(factors):
                yield _not_a_factor(trace, own[0], base, top, Rank.BROKEN if squared else Rank.NOTE)
                break


def _factors(scheduler: Scheduler, course: Course) -> Iterator[tuple[float, list[float]]]:
    """Yield the base rate of each parameter group, with the factors of it that were in force."""
    for group, base in enumerate(scheduler.base):
        rates = [step.rates[group] for step in course.steps if len(step.rates) > group]
        if rates and base > 0:
            yield base, [rate / base for rate in rates]


def _rises_to_the_end(factors: list[float]) -> bool:
    """Say whether the largest factor is the last one, and was reached only at the end."""
    top = max(factors)
    at_top = sum(factor == top for factor in factors)
    return factors[-1] == top and 2 * at_top < len(factors)


def _not_a_factor(
    trace: Trace[Event], scheduler: Scheduler, base: float, top: float, rank: Rank
) -> Finding:
    """Return the finding about a function that seems to return rates."""
    return Finding(
        f"the function of a LambdaLR of `{trace.subject}` seems to return a rate, not a factor",
        scheduler.name,
        "a rate of at most " + number(top * base) + f": {number(top)} times {number(base)}",
        "factors of about 1, for a rate of " + number(base),
        why="LambdaLR multiplies the optimizer's rate by what its function returns",
        rank=rank,
        event=scheduler,
    )


@invariant("loop", evidence=has_probe("high floor", "no schedule of torch annealed to a rate"))
def annealing_lowers_the_rate(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Cosine annealing ends below the learning rate that it starts from.

    Judges: CosineAnnealingLR and CosineAnnealingWarmRestarts that were advanced: whether eta_min is
        above the rates of all parameter groups, and no step of an optimizer has a higher rate.
    Allows: an eta_min that is above the rates of some groups alone; rates set higher by hand.
    Misses: schedules of other classes; rates on an accelerator.
    Why: the rate then climbs along the cosine, and is highest when training should settle: perhaps
        the two were exchanged, or the rate was lowered and the floor left as it was.
    Source: facebookresearch/fairseq pull request 2916 (the two exchanged);
        katsura-jp/pytorch-cosine-annealing-with-warmup issue 8 (peaks below the floor).
    """
    for probe in events(trace, Probe):
        if probe.probe == "high floor" and _stays_below(trace, probe.measured):
            yield Finding(
                f"a schedule of `{trace.subject}` anneals to a higher rate than it begins with",
                probe.label,
                number(probe.measured) + " is what it anneals to (eta_min)",
                number(probe.reference) + ", its highest rate at the beginning, or below",
                why="perhaps the two are exchanged, or eta_min stands for a share of the rate",
                event=probe,
                source=probe.source,
            )


def _stays_below(trace: Trace[Event], floor: float) -> bool:
    """Say whether all rates of an optimizer are at a floor or below it."""
    tops = [max((rate for s in c.steps for rate in s.rates), default=0.0) for c in courses(trace)]
    return any(0 < top <= floor * (1 + _ROUNDING) for top in tops)


@invariant("loop", evidence=has_probe("told epochs", "no scheduler was told at which epoch it is"))
def schedulers_are_told_epochs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The argument of a scheduler's `step()` is the epoch, not a loss.

    Judges: schedulers of torch, but for ReduceLROnPlateau, that are told something: whether most of
        what they are told, of three times or more, is no whole number, and it goes back again.
    Allows: epochs and parts of them that go on, as warm restarts take them; whole numbers.
    Misses: accuracies that rise each time; schedulers of one's own.
    Why: the argument of step() is the epoch. A loss of 0.7 is an epoch before the first: the rate
        is set to that of the beginning, each time.
    Source: torch.optim.lr_scheduler, LRScheduler.step(epoch); ReduceLROnPlateau.step(metrics).
    """
    for probe in events(trace, Probe):
        if probe.probe != "told epochs" or (probe.step or 0) < _FEW_TOLD:
            continue
        if 2 * probe.measured > (probe.step or 0):
            yield Finding(
                f"a scheduler of `{trace.subject}` gets an argument that is not the epoch",
                probe.label,
                portion(probe.measured, probe.step or 0, "times")
                + " no whole number, and "
                + integer(probe.reference, "times")
                + " less than before",
                "an epoch that goes on, or nothing",
                why="step() of this scheduler takes no metric: call it without one; what goes by a"
                " loss is ReduceLROnPlateau",
                event=probe,
            )
