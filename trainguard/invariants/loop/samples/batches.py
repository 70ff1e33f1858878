"""Judgements of batches: how many samples make a step, and what each of them weighs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer
from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.events.loop import Step, Term
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import ACCUMULATION, BATCHES, has_probe
from trainguard.invariants.loop.wording import (
    Course,
    count,
    courses,
    events,
    line_of_origin,
    longest,
    tally,
)
from trainguard.invariants.wording import number

_FEW = 3
_LEFT = 3  # passes backward in a loop: fewer may be a look at one batch
_CAPPED = 64  # passes and losses of one step that a trace keeps
_NEAR = 1e-2
_UNEVEN = 0.01  # of a gradient, by the parts' number: whole batches are less uneven than parts
# Times as much as a target of another micro-batch: as texts of any length do, and as where those of
# one length are together.
_HEAVIER, _FAR_HEAVIER = 1.5, 4.0
_FEW_OF_ALL = 0.05  # micro-batches: of one window that ends an epoch of many, the rate is off
_TWICE = 3  # micro-batches: a quarter for each of two may be a loss that is halved as well

_TOO_LITTLE = (
    "the loss of what is left at the end of an epoch is divided by the length of a full window"
)
_TOO_MUCH = (
    "the gradients of what is left at the end of an epoch stay there and are added to the next"
    " window: make the last step of an epoch with them, or clear them"
)


@invariant("loop", evidence=ACCUMULATION)
def accumulation_equals_full_batch(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Gradient accumulation over micro-batches gives the gradient of the full batch.

    Judges: steps made from one mean loss for each micro-batch, what each of them was multiplied by:
        their sum is 1 in the shorter windows that end an epoch, and in longer ones, if it is 1 in
        the others, where these hold a 20th of all micro-batches or more, else a note; three or
        more of them are not divided by their number twice. A note where nothing is divided, so that
        the sum is their number. And a step that a forked child made of
        one batch, several times, and of its parts: a note where a sum over samples is divided by
        the number of micro-batches, and where one batch weighs its parts otherwise than
        accumulation does, so that a hundredth of the gradient is another. And cross-entropies that
        ignore some targets, one for each micro-batch, in 3 steps or more: how many times as much a
        target that is left weighs in one micro-batch as in another, 1.5 (a note) or 4.
    Allows: 1e-2 (limit) of the sum. Weights by the number of samples. Gradients that are changed
        by hand between backward and the step, which are worth something else then. For the note,
        runs of one optimizer and one loss function only, since the two losses of a discriminator
        look alike.
    Misses: losses that are sums of several; more than 63 micro-batches, 16 for what a child makes;
        means over uneven numbers where neither a loader of torch nor an order draws the batches at
        random, where samples of a batch depend on each other, or random numbers are drawn; a
        division by another wrong number.
    Why: dividing the last two micro-batches by four makes the last step of each epoch half as
        large as it should be; what is left there, and never cleared, makes the first step of the
        next one larger; dividing nothing multiplies the rate by the number of them, and
        dividing what Accelerate or the Trainer divides as well makes it as much smaller. A mean
        of the means over the tokens of each micro-batch gives those in short texts more weight.
    Source: huggingface/transformers issues 34242 and 38837; huggingface/accelerate issue 3533;
        Lightning-AI/pytorch-lightning issue 19987.
    """
    near = trace.limit("accumulation_equals_full_batch", _NEAR)
    sources = {(t.function, t.source) for t in events(trace, Term) if not t.evaluation}
    for course in courses(trace):
        windows = [step for step in course.steps if step.weights and _accumulates(step)]
        yield from _uneven(trace, course, windows, near)
        yield from _twice_divided(trace, course, windows, near)
        several = [step for step in windows if len(step.weights) > 1]
        heavy = [s for s in several if all(abs(w - 1) <= near for w in s.weights)]
        if course.alone and len(sources) == 1 and count(heavy) > 1 and len(heavy) == len(several):
            yield note(
                f"the micro-batches of `{trace.subject}` are added up and not averaged",
                course.at(heavy[0]),
                "weights that sum to "
                + number(sum(heavy[0].weights))
                + f", in {tally(heavy, course.steps)}",
                "weights that sum to " + integer(1),
                why="the loss is not divided by the number of micro-batches; the rate may make up"
                " for it",
                event=heavy[0],
                source=line_of_origin(trace, "backward") or heavy[0].source,
            )
    asked = (event for event in events(trace, WhatIf) if event.question == "batch accumulated")
    for answer in [event for event in asked if event.outcome == "answered"][:1]:
        yield from _weighed_otherwise(trace, answer, near)
    for probe in events(trace, Probe):
        if probe.probe == "token weight" and probe.step >= _FEW and probe.measured >= _HEAVIER:
            yield _tokens_weigh_otherwise(trace, probe)


def _tokens_weigh_otherwise(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding of means over uneven numbers of targets that are averaged."""
    return Finding(
        f"a target of `{trace.subject}` weighs more in one micro-batch than in another",
        f"the micro-batches of {probe.step} steps",
        number(probe.measured) + " times as much, in the median step",
        number(1, "time, as in one batch"),
        why="each loss is a mean over the targets that are not ignored: divide the sum in each"
        " micro-batch by the number in all of them",
        rank=Rank.BROKEN if probe.measured >= _FAR_HEAVIER else Rank.NOTE,
        event=probe,
    )


def _weighed_otherwise(trace: Trace[Event], answer: WhatIf, near: float) -> Iterator[Finding]:
    """Yield a note where one batch weighs its parts otherwise than accumulation does."""
    by, *weights = answer.numbers
    at = at_step(answer.step) + f", {answer.label}"
    is_sum = all(abs(weight - len(weights)) <= near * len(weights) for weight in weights)
    if is_sum and abs(by * answer.reference - 1) <= near:
        yield note(
            f"`{trace.subject}` divides a sum over samples by the number of micro-batches",
            at,
            "a sum, times " + number(by),
            "a sum, times " + integer(1),
            why="sums add up to that of one batch by themselves: only means are to be divided",
            event=answer,
            source=answer.source,
        )
    elif not is_sum and answer.measured / len(weights) > _UNEVEN:
        yield note(
            f"the micro-batches of `{trace.subject}` weigh alike, and have uneven numbers in them",
            at,
            "in one batch its parts weigh " + number(min(weights)) + f" to {max(weights):.3g}",
            integer(1) + " each, as in accumulation",
            why="a mean of means is no mean over all tokens, pixels or weights: divide the sum in"
            " each micro-batch by the number in all of them",
            event=answer,
            source=answer.source,
        )


def _accumulates(step: Step) -> bool:
    """Say whether each pass of a step has one loss, and all of them end up in its gradients."""
    passes = len(step.losses)
    first = step.order.index("backward") if "backward" in step.order else len(step.order)
    cleared = "zero" in step.order[first:]
    repeated = len(set(step.fingerprints)) < len(step.fingerprints)
    whole = step.trained == passes == len(step.weights or step.losses) < _CAPPED
    return whole and not cleared and not repeated


def _uneven(
    trace: Trace[Event], course: Course, windows: Sequence[Step], near: float
) -> Iterator[Finding]:
    """Yield findings where shorter or longer windows are divided by the length of full ones."""
    lengths = Counter(len(step.weights) for step in windows)
    full = max(lengths, key=lambda length: (lengths[length], length), default=0)
    whole = [step for step in windows if len(step.weights) == full]
    even = [step for step in whole if abs(sum(step.weights) - 1) <= near]
    if full <= 1 or count(even) <= max(1, 0.8 * count(whole)):
        return
    shorter = [step for step in windows if len(step.weights) < full]
    longer = [step for step in windows if full < len(step.weights) < 2 * full]
    for words, why, others in (
        (("shorter", "little"), _TOO_LITTLE, shorter),
        (("longer", "much"), _TOO_MUCH, longer),
    ):
        wrong = [s for s in others if all(abs(w * full - 1) <= near for w in s.weights)]
        if 2 * len(wrong) > len(others):
            few = _micro_batches(wrong) < _FEW_OF_ALL * _micro_batches(windows)
            yield Finding(
                f"the {words[0]} accumulation windows of `{trace.subject}` weigh too {words[1]}",
                course.at(wrong[0]) + f", {len(wrong[0].weights)} of {full} micro-batches",
                "weights that sum to " + number(sum(wrong[0].weights)),
                "weights that sum to " + integer(1) + f" within {number(near)}",
                why=why,
                rank=Rank.NOTE if few else Rank.BROKEN,
                event=wrong[0],
            )


def _micro_batches(windows: Iterable[Step]) -> int:
    """Return how many micro-batches some steps are made of."""
    return sum(len(step.weights) * step.span for step in windows)


def _twice_divided(
    trace: Trace[Event], course: Course, windows: Sequence[Step], near: float
) -> Iterator[Finding]:
    """Yield a finding where each micro-batch weighs as little as two divisions make of it."""
    several = [step for step in windows if len(step.weights) >= _TWICE]
    light = [s for s in several if all(abs(w * len(s.weights) ** 2 - 1) <= near for w in s.weights)]
    if count(light) > 1 and count(light) > 0.8 * count(several):
        yield Finding(
            f"the micro-batches of `{trace.subject}` are divided by their number twice",
            course.at(light[0]) + f", {len(light[0].weights)} micro-batches",
            "weights that sum to "
            + number(sum(light[0].weights))
            + f", in {tally(light, course.steps)}",
            "weights that sum to " + integer(1) + f" within {number(near)}",
            why="Accelerate's backward and the Trainer divide the loss themselves: do not divide it"
            " again",
            event=light[0],
        )


@invariant("loop", evidence=BATCHES, live=SOON)
def effective_batch_is_constant(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The effective batch size, over all micro-batches, is the same in every step.

    Judges: with `batch` promised, the samples of each step against it. Without it, a note where
        the number of micro-batches changes for 3 steps or more and the product changes with it.
    Allows: exactly the promise (limit: a share of it); smaller steps one at a time, as at the end
        of an epoch. With several optimizers, or several passes for each loss, the samples of one
        pass, times the number of losses or not.
    Misses: the number of processes; more than 63 passes; what is thinned out of a long run.
    Why: the rate is right for one batch size; a division that leaves a remainder, or a loader that
        keeps its old batch size, makes another one.
    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677): the rate belongs to the
        size of the batch.
    """
    promised = trace.promise("batch")
    for course in courses(trace):
        steps = [s for s in course.steps if s.span == 1 and min(s.batch, default=0) > 0]
        known = [s for s in steps if max(len(s.batch), len(s.losses)) < _CAPPED]
        if promised is None:
            yield from _drifts(trace, course, known)
        elif len(known) >= _FEW:
            yield from _off(trace, course, known, promised)


def _sizes(course: Course, step: Step) -> set[float]:
    """Return the numbers of samples that a step may be said to be made from."""
    passes, losses = len(step.batch), len(step.losses)
    if course.alone and passes == losses and _accumulates(step):
        return {sum(step.batch)}
    shared = {sum(step.batch) * losses / passes} if losses and passes % losses == 0 else set()
    return shared | {sum(step.batch), max(step.batch), max(step.batch) * losses}


def _off(
    trace: Trace[Event], course: Course, steps: Sequence[Step], promised: float
) -> Iterator[Finding]:
    """Yield a finding where most steps, or several in a row, are of another size."""
    slack = trace.limit("effective_batch_is_constant", 0.0) * promised

    def is_wrong(step: Step) -> bool:
        """Say whether no number that a step may be made from is the promised one."""
        return all(abs(size - promised) > slack for size in _sizes(course, step))

    wrong = [step for step in steps if is_wrong(step)]
    row = longest(steps, is_wrong)
    if 2 * len(wrong) > len(steps) or len(row) >= _FEW:
        size = Counter(sum(step.batch) for step in wrong).most_common(1)[0][0]
        yield Finding(
            f"the steps of `{trace.subject}` are not made from the batch that it promises",
            course.at(row[0]) + f", {len(row[0].batch)} micro-batches",
            integer(size, "samples") + f", in {tally(wrong, steps)}",
            integer(promised, "samples"),
            why="perhaps the product of micro-batch, accumulation and processes is another one;"
            " samples are counted along the first dimension of the input",
            event=row[0],
        )


def _drifts(trace: Trace[Event], course: Course, steps: Sequence[Step]) -> Iterator[Finding]:
    """Yield a note where another number of micro-batches makes another number of samples."""
    clear = [s for s in steps if course.alone and len(s.batch) == len(s.losses)]
    plain = [s for s in clear if _accumulates(s)]
    stages = [list(own) for _, own in groupby(plain, key=lambda s: s.batch)]
    held = [stage for stage in stages if len(stage) >= _FEW]
    for before, after in pairwise(held):
        one, other = before[-1], after[0]
        if len(one.batch) != len(other.batch) and sum(one.batch) != sum(other.batch):
            yield note(
                f"the number of samples in a step of `{trace.subject}` drifts",
                course.at(other) + f", {len(one.batch)} micro-batches, then {len(other.batch)}",
                integer(sum(other.batch), "samples"),
                integer(sum(one.batch), "samples") + ", as before",
                why="perhaps the loader keeps its batch size, or a division leaves a remainder",
                event=other,
            )
            return


@invariant(
    "loop",
    evidence=has_probe("left loop", "no loop over a loader that is in a variable was learned in"),
)
def loops_go_through_their_batches(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A training loop over batches does not end after the first batch.

    Judges: loops over a DataLoader of several batches in which a pass backward is made, 3 times or
        more: whether the last line of their body returns, always, in functions that have epochs.
    Notes: the same with a break, or without epochs: some take one batch at a time on purpose.
    Allows: bodies with a `continue`; a return or a break that depends on something.
    Misses: loops over other things than a loader, and loaders that are not in a variable.
    Why: a return that stands one level too deep ends each epoch after its first batch, and a break
        that was left there after a try does the same: the losses look as they always do.
    Source: facebookresearch/deepcluster issue 1 and pull 3 (a return inside of the loop);
        avinashpaliwal/Super-SloMo issue 3 (a break that was left there).
    """
    for probe in events(trace, Probe):
        if probe.probe == "left loop" and probe.measured >= _LEFT:
            yield Finding(
                f"a loop of `{trace.subject}` over batches ends in its first round",
                f"`{probe.label}` at the end of its body",
                integer(1, "batch") + " in each pass through the loader",
                integer(probe.reference, "batches"),
                why="it stands one level too deep: move it behind the loop, or take it away",
                rank=Rank.BROKEN if probe.step else Rank.NOTE,
                event=probe,
            )
