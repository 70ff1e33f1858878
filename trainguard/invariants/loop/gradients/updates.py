"""Judgements of how gradients and updates are spread: across depth, and against the weights."""

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import correlation

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import LAYERS, UPDATES, has_probe
from trainguard.invariants.loop.losses.causes import line_of_draws
from trainguard.invariants.loop.rates.gains import Gains, find_gains
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    gradient_sizes,
    middle,
    percent,
    stretch,
)
from trainguard.invariants.wording import number

_BROKEN, _NOTED = 1e-7, 1e-5
_TREND = 0.8
_LARGE, _SMALL = 0.1, 1e-8
_DROWNED = (
    0.75  # of the elements, in each look: 0.1 at most in 151 healthy scripts, 0.95 in mistakes
)
_LOST, _ALL_LOST = 0.5, 0.9  # of the elements, in each look: for a note; it fails
_USUAL = 1e-6  # an epsilon up to here is no choice against a gradient's size


@invariant("loop", evidence=LAYERS)
def layer_gradients_are_balanced(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradients neither vanish nor explode across the depth of the model.

    Judges: the root mean square of each weight's gradient, in at least 2 surveyed steps with at
        least 3 weights that were reached: the smallest over the largest, where they rise or fall
        with depth (a rank correlation of 0.8 with the order in the model).
    Allows: a median ratio of 1e-7 (limit); below 1e-5 it is a note. Weights with no gradient.
    Misses: single layers that are out of step with their neighbours, as behind a layer scale of
        1e-6, which is meant; imbalance that weights of one dimension would show.
    Why: sigmoids in a row, or weights that are too large, make a stack of which only one end
        learns.
    Source: Glorot and Bengio, 2010 (proceedings.mlr.press/v9/glorot10a.html).
    """
    least = trace.limit("layer_gradients_are_balanced", _BROKEN)
    for course in courses(trace):
        surveyed = [s for s in course.steps if len(gradient_sizes(s)) >= 3]
        sloped = [s for s in surveyed if abs(_slope(s)) >= _TREND and _ratio(s) < _NOTED]
        if len(surveyed) < 2 or len(sloped) * 2 <= len(surveyed):
            continue
        ratio = middle(_ratio(step) for step in surveyed)
        step = sloped[0]
        sizes = gradient_sizes(step)
        low, high = min(sizes, key=lambda n: sizes[n]), max(sizes, key=lambda n: sizes[n])
        verb = "vanish" if _slope(step) > 0 else "explode"
        yield Finding(
            f"the gradients of `{trace.subject}` {verb} toward its first layers",
            course.at(step) + f", {low} against {high}",
            "ratio " + number(ratio) + f", median of {len(surveyed)} steps",
            "ratio " + number(least if ratio < least else _NOTED),
            why="perhaps activations that saturate, or an initialisation of the wrong size"
            + line_of_draws(trace),
            rank=Rank.BROKEN if ratio < least else Rank.NOTE,
            event=step,
        )


def _ratio(step: Step) -> float:
    """Return the smallest gradient of a step over the largest."""
    sizes = gradient_sizes(step).values()
    return min(sizes) / max(sizes)


def _slope(step: Step) -> float:
    """Return the rank correlation of the gradients with the order in the model, -1 to 1."""
    sizes = list(gradient_sizes(step).values())
    order = sorted(sizes)
    ranks = [order.index(size) for size in sizes]
    return correlation(range(len(ranks)), ranks) if len(set(ranks)) > 1 else 0.0


@invariant("loop", evidence=UPDATES)
def update_ratio_is_healthy(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The update-to-weight ratio is neither vanishingly small nor too large.

    Judges: the norm of the update over that of the parameters, on surveyed steps with a gradient.
        Too large: the median of the second half, with at least 5 such steps, of a single
        optimizer whose loss is above zero and does not end below its beginning. Too small: the
        largest of the steps whose rate is at least a tenth of the highest.
    Allows: up to 0.1 (limit), at least 1e-8. What is found is a note.
    Misses: large updates of a loss that falls, as of models that start from zero, of L-BFGS, of
        losses of any sign, of several optimizers; single layers.
    Why: an update below the resolution of its weights is rounded off: with bfloat16 weights and a
        small rate nothing moves. One as large as the weights forgets what was learned.
    Source: Stanford CS231n, notes on learning, "Ratio of weights:updates" (about 1e-3 is usual).
    """
    most = trace.limit("update_ratio_is_healthy", _LARGE)
    for course in courses(trace):
        surveyed = [s for s in course.steps if s.update >= 0 and s.weight > 0 and s.norm > 0]
        late = [s.update / s.weight for s in surveyed[len(surveyed) // 2 :]]
        if len(surveyed) >= 5 and middle(late) > most and _gains_nothing(course):
            yield _odd(trace, course, surveyed[-1], middle(late), most)
        top = max((max(s.rates, default=0.0) for s in course.steps), default=0.0)
        driven = [s for s in surveyed if top > 0 and max(s.rates, default=0.0) >= 0.1 * top]
        largest = max((s.update / s.weight for s in driven), default=1.0)
        if len(driven) >= 2 and largest < _SMALL:
            yield _odd(trace, course, driven[0], largest, _SMALL)


def _gains_nothing(course: Course) -> bool:
    """Say whether the loss of a single optimizer is above zero and ends no lower than it began."""
    steps = [step for step in course.every if isfinite(step.loss)]
    if not course.alone or count(steps) < 20 or not all(step.loss > 0 for step in steps):
        return False
    return _median_loss(steps, 0.75, 1) >= _median_loss(steps, 0, 0.25)


def _median_loss(steps: Sequence[Step], low: float, high: float) -> float:
    """Return the median loss of one part of the run."""
    return middle(step.loss for step in stretch(steps, low, high))


def _odd(trace: Trace[Event], course: Course, step: Step, ratio: float, limit: float) -> Finding:
    """Return the note for updates of an unhealthy size."""
    large = ratio > limit
    return note(
        f"the updates of `{trace.subject}` are as large as its parameters"
        if large
        else f"the updates of `{trace.subject}` are lost in its parameters",
        course.at(step),
        number(ratio) + " of the parameters' norm",
        ("at most " if large else "at least ") + number(limit),
        why="the rate may be too high for this model"
        if large
        else "the rate may be far too low, or the parameters of a type too coarse for it",
        event=step,
    )


@invariant(
    "loop", evidence=has_probe("epsilon", "no optimizer of torch that adapts made enough steps")
)
def epsilon_is_small(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The epsilon of an adaptive optimizer is small compared with the gradients.

    Judges: Adam, AdamW, NAdam, RAdam and RMSprop of torch: of each group a sample of the elements
        that have a gradient, in at least 5 steps that are looked at more closely: the roots of
        their averaged squares, against the epsilon that is added.
        What is found is a note, as an epsilon of 0.1 or 1 is now and then chosen on purpose; it
        fails where the first sixty steps, made again with one of 1e-8, gain 0.2 of the loss or
        more, and the run's own steps not half as much.
    Allows: up to half (limit) of the elements below the epsilon in one look at least, as where a
        loss has come to its end.
    Misses: optimizers that are not torch's, groups of fewer than 32 elements, single layers.
    Why: with an epsilon above the gradients the steps are those of momentum with a rate of lr /
        epsilon, as small as the gradients are; so they are where a loss is divided once too often,
        which an optimizer that adapts would not mind.
    Source: NVIDIA-NeMo/Speech pull request 775 (an epsilon that is not handed on).
    """
    most = trace.limit("epsilon_is_small", _DROWNED)
    seen = [p for p in events(trace, Probe) if p.probe == "epsilon" and p.measured > most]
    if seen:
        worst = max(seen, key=lambda probe: probe.measured)
        costs = [gains for gains in find_gains(trace) if gains.of_epsilon()]
        yield Finding(
            f"the epsilon of an optimizer of `{trace.subject}` is larger than its gradients",
            f"{worst.label}, epsilon {worst.reference:g}",
            percent(worst.measured)
            + " of the elements are below it at least, in each look"
            + "".join(map(_loss_with_it, costs)),
            "at most " + percent(most) + "".join(map(_loss_without_it, costs)),
            why="the steps are as small as the gradients: perhaps the loss is divided once too"
            " often, or 16 bits hold no such epsilon"
            if worst.reference <= _USUAL
            else "the optimizer hardly adapts: its steps are those of momentum with a rate of"
            " lr / epsilon. Perhaps an epsilon that was meant for something else",
            rank=Rank.BROKEN if costs else Rank.NOTE,
            event=worst,
        )


def _loss_with_it(gains: Gains) -> str:
    """Say what the run comes to."""
    steps, still = gains.answer.numbers[0], number(gains.answer.reference)
    loss = number(gains.answer.measured)
    return f"; after {steps:.0f} steps the loss is {loss}, and without any step {still}"


def _loss_without_it(gains: Gains) -> str:
    """Say what steps with torch's own epsilon come to."""
    return f"; {number(gains.answer.numbers[-1])} with an epsilon of 1e-08 in the same steps"


@invariant(
    "loop", evidence=has_probe("rounding", "no optimizer of torch held parameters of 16 bits")
)
def updates_outlast_rounding(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Updates to 16-bit parameters are not lost to rounding.

    Judges: optimizers of torch that hold parameters of bfloat16 or float16: of a sample of the
        elements that have a gradient, in at least 5 steps that are looked at more closely, the
        share that has the same value after the step as before.
    Allows: less than 0.9 (limit) in one look at least, as where a rate is warmed up; above 0.5 in
        each look it is a note. Autocast, and masters of float32 that an optimizer holds.
    Misses: optimizers that are not torch's, which may round at random or keep what is lost; single
        layers; updates that round to one that is far too large.
    Why: bfloat16 tells numbers apart that differ by a 256th: what a step adds to a weight of 0.1
        is lost where it is below 0.0002, as with Adam at the rates of fine-tuning, every time, so
        that more steps do not help. The loss falls by what few small weights can do.
    Source: Zamirai et al., Revisiting BFloat16 Training (arXiv 2010.06192); pytorch/ao pull
        request 1124.
    """
    most = trace.limit("updates_outlast_rounding", _ALL_LOST)
    seen = [p for p in events(trace, Probe) if p.probe == "rounding" and p.measured > _LOST]
    if seen:
        worst = max(seen, key=lambda probe: probe.measured)
        yield Finding(
            f"most parameter updates of `{trace.subject}` are lost to rounding",
            f"{worst.label}, which tells apart what differs by {percent(worst.reference)}",
            percent(worst.measured) + " of the elements at least are what they were, after each"
            " step that was looked at",
            "at most " + percent(most),
            why="keep the parameters in float32 and compute under autocast, or let the optimizer"
            " hold copies of float32",
            rank=Rank.BROKEN if worst.measured > most else Rank.NOTE,
            event=worst,
        )
