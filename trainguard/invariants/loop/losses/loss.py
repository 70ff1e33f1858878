"""Judgements of the loss of a training run."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from math import isfinite, isinf

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import LOSSES
from trainguard.invariants.loop.losses.causes import tell_of_nonfinite
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    first,
    last_word,
    main_course,
    middle,
    mostly,
    percent,
    stretch,
)
from trainguard.invariants.wording import number

FOR_GOOD = 10  # skipped steps in a row, to the end of the run, that no scaler's factor explains
_LEAST_STEPS = 50  # for a judgement of the curve that nothing was promised about
_LEAST_ROWS = 10  # the same of a log, whose rows may be epochs
_WARM, _WARM_IN_LOG = 0.99, 0.5  # of the highest rate; the rows of a log may all be of a warmup
_FLAT = 1e-3
_RISEN, _BURST = 2.0, 100.0


def has_nonfinite_loss(step: Step) -> bool:
    """Say whether the loss of a step is known and is no number."""
    return isinf(step.loss) or not all(isfinite(value) for value in step.losses)


@invariant("loop", evidence=LOSSES, logs=True, live=1)
def loss_is_finite(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss is a finite number in every step.

    Judges: each value that was handed to backward before a step that was made.
    Allows: a step that a gradient scaler skipped; not 10 of them in a row to the end of the run.
    Misses: losses that no backward pass started from; micro-batches after the 64th of a step.
    Why: one nan makes every parameter nan in one step, and the run goes on for days as if nothing
        had happened.
    Source: PyTorch, torch.autograd.detect_anomaly, which looks for the same thing.
    """
    found = [
        (s, c) for c in courses(trace) if (s := first(c.steps, has_nonfinite_loss)) is not None
    ]
    if not found:
        yield from _skipped_for_good(trace)
        return
    step, course = min(found, key=lambda pair: pair[0].clock)
    yield Finding(
        f"the loss of `{trace.subject}` is not finite",
        course.at(step),
        number(next((value for value in step.losses if not isfinite(value)), step.loss)),
        "finite",
        why=_explain(trace, step),
        event=step,
    )


def _explain(trace: Trace[Event], step: Step) -> str:
    """Say what the loss has grown from, and which value was not finite first."""
    return "; ".join(tell_of_nonfinite(trace, step)) or (
        "perhaps a rate that is too high, or a log, root or division of something near 0"
    )


def _skipped_for_good(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for an optimizer whose last steps all lost their loss, and were skipped."""
    for course in courses(trace):
        ending = tuple(takewhile(has_nonfinite_loss, reversed(course.every)))
        if count(ending) >= FOR_GOOD:
            yield Finding(
                f"the loss of `{trace.subject}` is never finite again and its steps are skipped",
                course.at(ending[-1]) + " and all after it",
                integer(count(ending), "steps") + " skipped in a row",
                Measure(f"fewer than {FOR_GOOD}", FOR_GOOD, "steps"),
                why="a gradient scaler skips each of them: the run goes on and learns nothing",
                event=ending[-1],
            )
            return


@invariant("loop", live=SOON)
def loss_depends_on_parameters(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss depends on the parameters that the optimizer holds.

    Judges: each optimizer that no backward pass of the whole run gave a gradient, though backward
        ran before each of its steps. Where others reach an optimizer: lines at which all passes
        backward, 8 or more, begin at a number that has no graph and was made to require a gradient.
    Allows: steps whose backward passes belong to another optimizer, as long as one step of the
        run has a gradient; where other optimizers learn, fewer than 10 steps are a note. Numbers
        that stay the same, as stand-ins do for a batch without targets; those that are learned, or
        have a hook.
    Misses: a loss of which only a part is cut off: every_trainable_parameter_moves names that.
    Why: a loss that is wrapped in a new tensor, detached or computed without gradients can be
        made to require one: backward runs, nothing moves, and nothing complains.
    Source: PyTorch, torch.tensor (it warns where it copies a tensor, which has no graph then).
    """
    every, found = courses(trace), False
    for course in every:
        steps = course.steps
        if course.by_hand or not steps or not all(_reaches_nothing(s) for s in steps):
            continue
        others = any(step.received for other in every for step in other.every)
        found = True
        yield Finding(
            f"the loss of `{trace.subject}` reaches no parameter of its optimizer",
            course.at(steps[0]) + " and all after it",
            portion(0, steps[0].held, "parameters") + " have a gradient",
            "at least " + portion(1, steps[0].held),
            why="the loss may be wrapped in a new tensor, detached, or of another model",
            rank=Rank.NOTE if others and count(steps) < FOR_GOOD else Rank.BROKEN,
            event=steps[0],
        )
    for probe in () if found else events(trace, Probe):
        if probe.probe == "leaf loss" and probe.reference:
            yield _describe_leaf(trace, probe)


def _describe_leaf(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a loss that goes backward, and has no graph."""
    return Finding(
        f"a loss of `{trace.subject}` goes backward and has no graph",
        at_step(probe.step) + " and all after it",
        integer(int(probe.measured), "passes") + " backward, which reach no parameter",
        "a graph of what it was computed from",
        why="it is wrapped in a new tensor, or detached, and then made to require a gradient: what"
        " it was computed from gets none",
        event=probe,
    )


def _reaches_nothing(step: Step) -> bool:
    """Say whether backward ran before a step, gave it nothing, and nobody cleared what it gave."""
    moved = step.norm > 0 or step.update > 0
    cleared = last_word(step, "zero") > last_word(step, "backward") >= 0
    return bool(step.losses) and step.held > 0 and not (step.received or moved or cleared)


@invariant("loop", evidence=LOSSES, logs=True)
def loss_falls(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The training loss falls over the run.

    Judges: with promise falls, the median of the last tenth of the steps against that of the
        first tenth, for the optimizer that made the most steps. Without it, only what is
        conclusive: at least 50 steps of a single optimizer, at a rate above zero and past its
        warmup, with a loss above zero; of a log 10 rows, at half of the highest rate or more.
    Allows: what is promised. Without a promise: a note where all quarters of the run and the
        steps in them are alike within 0.1 % (limit), or where the last quarter is above the
        beginning and more than 2 times the first quarter; 100 times unless the loss is known to
        be the mean of one loss function throughout.
    Misses: without a promise, a loss whose noise hides that it does not fall, losses of any sign,
        several optimizers, and runs with teachers or rollouts, whose losses may rise.
    Why: a run can cost weeks before somebody looks at the scale of the axis.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): overfit one batch.
    """
    course = main_course(trace)
    steps = [] if course is None else [s for s in course.every if isfinite(_level(s))]
    if course is None or len(steps) < 2:
        return
    falls = trace.promise("falls")
    if falls is not None:
        yield from _falls_short(trace, course, steps, falls)
    elif course.alone and _conclusive(trace, steps):
        yield from _flat(trace, course, steps)
        yield from _rises(trace, course, steps)


def _level(step: Step) -> float:
    """Return the mean of what was handed to backward: it is the same for a shorter window."""
    if not step.losses:
        return step.loss
    # Divided before they are added: two huge losses are no overflow, two infinite ones no error.
    return sum(loss / len(step.losses) for loss in step.losses)


def _typical(steps: Sequence[Step], low: float, high: float) -> float:
    """Return the median loss of one part of the run."""
    return middle(_level(step) for step in stretch(steps, low, high))


def _falls_short(
    trace: Trace[Event], course: Course, steps: Sequence[Step], falls: float
) -> Iterator[Finding]:
    """Yield a finding where the loss falls by less than was promised."""
    before, after = _typical(steps, 0, 0.1), _typical(steps, 0.9, 1)
    if before - after < falls * abs(before):
        fall = (before - after) / abs(before) if before else 0.0
        yield Finding(
            f"the loss of `{trace.subject}` does not fall as promised",
            course.at(steps[0]) + f" to {steps[-1].step}",
            percent(fall) + f"  (from {number(before)} to {number(after)})",
            "at least " + percent(falls),
            why="perhaps a rate unfit for the loss, or parameters that the loss does not reach",
            event=steps[-1],
        )


def _conclusive(trace: Trace[Event], steps: Sequence[Step]) -> bool:
    """Say whether a curve that nothing was promised about can be judged at all."""
    top = max((max(step.rates) for step in steps if step.rates), default=0.0)
    is_log = "log" in trace.conditions
    warm = (_WARM_IN_LOG if is_log else _WARM) * top
    return (
        len(steps) >= (_LEAST_ROWS if is_log else _LEAST_STEPS)
        and all(_level(step) > 0 for step in steps)
        and mostly(steps, lambda s: (min(s.rates) > 0) if s.rates else is_log and not top)
        and any(max(s.rates, default=0.0) >= warm for s in stretch(steps, 0, 0.5))
        and not any(passes.routine for passes in events(trace, Evaluation))
    )


def _flat(trace: Trace[Event], course: Course, steps: Sequence[Step]) -> Iterator[Finding]:
    """Yield a note where the loss is the same in all quarters, and from one step to the next."""
    most = trace.limit("loss_falls", _FLAT)
    quarters = [_typical(steps, part / 4, (part + 1) / 4) for part in range(4)]
    level = middle(quarters)
    spread = (max(quarters) - min(quarters)) / level
    noise = middle(abs(_level(a) - _level(b)) / level for a, b in pairwise(steps))
    begun = abs(_level(steps[0]) - level) / level
    if spread <= most and noise <= most and begun <= 10 * most:
        yield note(
            f"the loss of `{trace.subject}` is flat",
            course.at(steps[0]) + f" to {steps[-1].step}",
            percent(spread) + " between the quarters of the run",
            "more than " + percent(most),
            why="perhaps one term drowns the others, clipping takes the gradient away, or the rate"
            " is far too low",
            event=steps[-1],
        )


def _rises(trace: Trace[Event], course: Course, steps: Sequence[Step]) -> Iterator[Finding]:
    """Yield a note where the loss ends far above where it was."""
    before, after = _typical(steps, 0, 0.25), _typical(steps, 0.75, 1)
    start = max(_level(step) for step in stretch(steps, 0, 0.1))
    plain = len({step.weights for step in steps}) == 1 and bool(steps[0].weights)
    allowed = _RISEN if plain else _BURST
    if after > allowed * before and after > start:
        yield note(
            f"the loss of `{trace.subject}` rises",
            course.at(steps[0]) + f" to {steps[-1].step}",
            number(after / before, "times") + f"  (from {number(before)} to {number(after)})",
            "at most " + number(allowed, "times"),
            why="perhaps a rate that is too high, or a sign that is turned",
            event=steps[-1],
        )
