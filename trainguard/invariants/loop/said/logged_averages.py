"""Judgement of the averages that a script says: the mean loss of an evaluation or of an epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite, nan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.names import EVALUATION, TRAINING, words_of
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Logged, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.evaluations import select_evaluations
from trainguard.invariants.loop.evidence import NUMBERS
from trainguard.invariants.loop.said.logged import find_kind
from trainguard.invariants.loop.wording import (
    events,
    in_line,
    line_of_origin,
    main_course,
    middle,
    place_of_log,
)
from trainguard.invariants.wording import number

_FEW = 3  # averages that agree on a mistake
_NEAR = 2e-3  # of the value: what float16 and another order of adding up may change
_AGREE = 2  # means of divided losses: they are a multiple apart, and given to three digits
_UNEVEN = 0.1  # of the mean over samples: by less, another seed has another mean over batches
_COARSE = 0.02  # of the value: what is rounded more than that says nothing
_NOTES = ("sum", "last")
_BESIDE = {"loss", "epoch", "mean", "avg", "average", "running"}


@invariant("loop", evidence=NUMBERS)
def logged_averages_are_true(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A reported loss of an evaluation or epoch is the mean of the losses computed in it.

    Judges: what is said last after each evaluation under a name such as "val_loss" or "val", and
        training losses ("train", "mean_loss") by the steps since they were said before, where one
        loss function was called for each batch, or in evaluations those of the terms of the loss:
        most of 3 values or more match a known mistake, and none the truth. The mistakes: the sum of
        means divided by the number of samples, by the number of training batches, or by one batch
        too few or too many; the loss of one batch divided by their number; sums over samples
        divided by the number of batches; a sum or a mean that goes on from one to the next; sums
        divided by the batch size of training; means over batches of other sizes that are 0.1 of it
        from the mean over samples. The sum itself and the loss of the last batch are notes. Where
        gradients are accumulated, and each loss is divided by the number of passes before: whether
        what is said twice or more of the training is the mean of what was divided.
    Allows: 2e-3 (limit) of the value and what was rounded off; means over batches that are near
        those over samples, the best so far, and, in training, the loss of any step.
    Misses: trainings with losses of several terms, what is said once for each batch, evaluations
        with gradients, values that match nothing; epochs of which a long run keeps some steps only.
    Why: a loss that is 32 times too small looks like a model without overfitting, and one that adds
        up from epoch to epoch like one that gets worse: stopping and choosing go by it.
    Source: qinnzou/DeepCrack issue 18; mahmoodlab/PathomicFusion pull request 3; passalis/dain
        issue 1.
    """
    near = trace.limit("logged_averages_are_true", _NEAR)
    yield from _divided(trace, near)
    divisors = _find_divisors(trace)
    told = set()
    for name, pairs in (*_validations(trace, divisors), *_epochs(trace)):
        faults = [_fault(one, history, divisors, near) for one, history in pairs]
        first = next((f for f in faults if f not in ("", "true")), "")
        # What goes on from one to the next is true once, the first time.
        true = "true" in (faults[1:] if first in ("grown", "running") else faults)
        if first and not true and first not in told and faults.count(first) >= _few(first):
            told.add(first)
            yield _finding(trace, name, pairs[faults.index(first)], first, faults)


def _may_mean(name: str, data: frozenset[str]) -> bool:
    """Say whether a name may be that of a mean loss of some data: "val" alone may be one too."""
    words = set(words_of(name))
    about = bool(words & data) or (data is TRAINING and "loss" in words)
    return (about and words <= data | _BESIDE) or (data is TRAINING and find_kind(name) == "loss")


@dataclass(frozen=True, slots=True)
class _Losses:
    """
    The losses of one evaluation or epoch; `each` are those that may be said instead.

    scale: what all of them may be multiplied by, too.
    """

    clock: int
    count: int
    total: float
    weighted: float
    last: float
    samples: int
    reduction: str = "mean"
    each: tuple[float, ...] = ()
    scale: float = 1.0


_Pair = tuple[Logged, tuple[_Losses, ...]]  # what was said, and the losses up to then


def _few(fault: str) -> int:
    """Return how many values must agree on a fault: what is true once is said once more."""
    return _FEW - 1 if fault in ("grown", "running") else _FEW


def _find_divisors(trace: Trace[Event]) -> dict[str, float]:
    """Return what sums may be divided by in error: the batches, and the batch size, of training."""
    course = main_course(trace)
    sizes = [step.batch[0] for step in course.steps if step.batch] if course else []
    batches = trace.conditions.get("batches")
    return {
        "training": float(batches) if isinstance(batches, int) else nan,
        "batch": middle(sizes),
    }


def _validations(
    trace: Trace[Event], divisors: dict[str, float]
) -> Iterator[tuple[str, list[_Pair]]]:
    """Yield what was said of the evaluations of each place, under each name."""
    judged = [e for e in select_evaluations(trace) if e.measures]
    said = [one for one in events(trace, Logged) if _may_mean(one.name, EVALUATION)]
    names = {(one.channel, one.name): one.name for one in said}
    places = {(e.module, e.source) for e in judged}
    if len(places) > 1:
        return  # which of them a name is about is not known
    for key, name in names.items():
        own = [one for one in said if (one.channel, one.name) == key]
        pairs: list[_Pair] = []
        for index, (start, end) in enumerate(pairwise((*(e.clock for e in judged), float("inf")))):
            latest = [one for one in own if start < one.clock < end]
            # What is said once for each batch is that of the batch: a framework averages it.
            if latest and (len(latest) == 1 or len(latest) != judged[index].count):
                history = tuple(
                    _of_evaluation(one, divisors["batch"]) for one in judged[: index + 1]
                )
                pairs.append((latest[-1], history))
        yield name, pairs


def _of_evaluation(one: Evaluation, batch: float) -> _Losses:
    """Return the losses of an evaluation; of several for each pass as the training adds them up."""
    if isfinite(one.mixed):
        own = one.passes, one.mixed * one.passes, one.mixed_weighted, nan, one.mixed_samples
        # Sums that the training divides by the size of its batches are to be divided by another.
        is_mean = one.reduction == "sum" and abs(one.mixed_by * batch - 1) < _NEAR
        by = 1.0 if is_mean else one.mixed_by
        return _Losses(one.clock, *own, one.reduction, scale=by)
    single = one.count == one.passes
    return _Losses(
        one.clock,
        one.count if single else 0,
        one.loss * one.count,
        one.weighted,
        one.last,
        one.samples,
        one.reduction,
    )


def _epochs(trace: Trace[Event]) -> Iterator[tuple[str, list[_Pair]]]:
    """Yield what was said of the training, each with the steps since it was said before."""
    course = main_course(trace)
    steps = course.every if course is not None and course.alone else ()
    said = [one for one in events(trace, Logged) if _may_mean(one.name, TRAINING)]
    ordered = sorted(said, key=lambda one: (one.channel, one.name, one.clock))
    if any(s.weights != (1.0,) for s in steps):
        return
    for (_, name), group in groupby(ordered, key=lambda one: (one.channel, one.name)):
        pairs: list[_Pair] = []
        history: list[_Losses] = []
        start = -1
        for one in group:
            own = [step for step in steps if start < step.clock < one.clock]
            start = one.clock
            if any(step.span > 1 for step in own):
                break  # from here on not all steps are known
            if len(own) >= 2 and all(step.batch for step in own):
                history.append(_of_steps(own))
                pairs.append((one, tuple(history)))
        yield name, pairs


def _divided(trace: Trace[Event], near: float) -> Iterator[Finding]:
    """Yield a finding for means of losses that were divided to be accumulated."""
    parts = {p.measured for p in events(trace, Probe) if p.probe == "divided loss"}
    course = main_course(trace)
    steps = course.every if parts and course is not None and course.alone else ()
    if not steps or middle(len(step.losses) for step in steps) not in parts:
        return
    several, batches = parts.pop(), trace.conditions.get("batches")
    epoch = batches if isinstance(batches, int) else 0
    said = [one for one in events(trace, Logged) if set(words_of(one.name)) & TRAINING]
    ordered = sorted(said, key=lambda one: (one.channel, one.name, one.clock))
    for (_, name), group in groupby(ordered, key=lambda one: (one.channel, one.name)):
        start, told = -1, []
        for one in group:
            own = [step for step in steps if start < step.clock < one.clock]
            start = one.clock
            losses = [loss for step in own for loss in step.losses]
            if len(own) < 2 or any(step.span > 1 for step in own):
                continue
            exact = one.rounding <= near * abs(one.value)
            for those in (losses, losses[-epoch:]):  # not each epoch may be told of
                mean = sum(those) / max(1, len(those))
                if exact and abs(one.value - mean) <= near * abs(mean) + one.rounding:
                    told.append((one, several * mean, len(those)))
                    break
        if len(told) >= _AGREE:
            one, true, count = told[0]
            yield Finding(
                f"the mean loss that `{trace.subject}` logs is that of losses that were divided",
                place_of_log(name, one.channel, one.step),
                number(one.value) + f" ({len(told)} times)",
                number(true) + f", the mean of {count} losses before that",
                why=f"each is divided by {several:g} to be accumulated: add up what it was before",
                event=one,
            )
            return


def _of_steps(steps: Sequence[Step]) -> _Losses:
    """Return the losses of some steps in a row."""
    losses, sizes = [s.loss for s in steps], [s.batch[0] for s in steps]
    total = sum(loss * size for loss, size in zip(losses, sizes, strict=True))
    weighted = total / sum(sizes) if any(sizes) else nan  # a list of graphs has no size
    return _Losses(
        steps[-1].clock,
        len(steps),
        sum(losses),
        weighted,
        losses[-1],
        sum(sizes),
        each=tuple(losses),
    )


def _fault(
    said: Logged, history: tuple[_Losses, ...], divisors: dict[str, float], near: float
) -> str:
    """Return what a value is: "true", a known mistake, or nothing."""
    now = history[-1]

    def fits(value: float) -> bool:
        """Say whether the logged value is this one, or its multiple, but for rounding."""
        each = [value, value * now.scale] if isfinite(value) else []
        return any(abs(said.value - own) <= near * abs(own) + said.rounding for own in each)

    if now.count < 2 or said.rounding > _COARSE * abs(said.value):
        return ""
    if _is_uneven(now) and fits(now.total / now.count) and not fits(now.weighted):
        return "uneven"
    if any(map(fits, _truths(history))):
        return "true"
    return next((name for name, value in _mistakes(history, divisors) if fits(value)), "")


def _is_uneven(now: _Losses) -> bool:
    """Say whether the mean over batches is none over samples: of an evaluation, and by far."""
    mean, true = now.total / max(1, now.count), now.weighted
    plain = now.reduction == "mean" and not now.each and isfinite(true)
    return plain and abs(mean - true) > _UNEVEN * abs(true)


def _truths(history: tuple[_Losses, ...]) -> list[float]:
    """Return what may truly be said of the last losses of some."""
    now = history[-1]
    if now.reduction == "sum":
        return [now.total, now.total / now.count, now.total / max(1, now.samples)]
    best = min(one.total / max(1, one.count) for one in history)
    return [now.total / now.count, now.weighted, best, *now.each]


def _mistakes(
    history: tuple[_Losses, ...], divisors: dict[str, float]
) -> Iterator[tuple[str, float]]:
    """Yield the names of known mistakes, each with the value that it makes."""
    now = history[-1]
    total, count = sum(one.total for one in history), sum(one.count for one in history)
    if len(history) > 1:
        yield "grown", total / now.count
        yield "grown", total / max(1, now.samples)
    if len(history) > 1 and not now.each:  # of a training, the mean so far may be meant
        yield "running", total / count
    if now.reduction == "sum":
        yield "batch", now.total / (now.count * divisors["batch"])
    elif now.reduction == "mean":
        yield "samples", now.total / max(1, now.samples)
        yield "part", now.last / now.count
        if now.samples > now.count:
            yield "sizes", now.weighted * now.samples / now.count
        if not now.each:
            yield "training", now.total / divisors["training"]
            yield "short", now.total / (now.count - 1)
            yield "long", now.total / (now.count + 1)
            yield "sum", now.total
            yield "last", now.last


_FAULTS = {
    "grown": ("adds up from one time to the next", "the sum may never be set back to zero"),
    "running": ("goes on from one time to the next", "the average may never be reset"),
    "batch": (
        "is divided by the batch size of training",
        "divide by the size of the batches that were evaluated",
    ),
    "samples": (
        "is divided by the number of samples, though each term is a mean already",
        "divide by the number of batches, or multiply each term by the size of its batch",
    ),
    "sizes": (
        "is divided by the number of batches, though each term is multiplied by its batch size",
        "divide by the number of samples, or add up the means as they are",
    ),
    "training": (
        "is divided by the number of training batches",
        "divide by the length of the loader that was evaluated",
    ),
    "short": (
        "is divided by one batch less than there were",
        "an index that begins at zero may be taken for the number of batches",
    ),
    "long": (
        "is divided by one batch more than there were",
        "a counter may begin at one, or be advanced once more than batches are seen",
    ),
    "uneven": (
        "is the mean over its batches, of which some are smaller",
        "multiply each mean by the size of its batch, and divide by the number of samples",
    ),
    "sum": ("is the sum over its batches", "divide by their number: it grows with the data"),
    "part": (
        "is that of the last batch, divided by the number of batches",
        "divide the sum that was added up, and not the loss of one batch",
    ),
    "last": ("is that of the last batch only", "add up the losses of all batches"),
}


def _finding(
    trace: Trace[Event], name: str, pair: _Pair, fault: str, faults: Sequence[str]
) -> Finding:
    """Return the finding about what is said under one name."""
    said, history = pair
    now = history[-1]
    true = now.total / (now.samples if now.reduction == "sum" and now.samples else now.count)
    true = now.weighted if fault == "uneven" else true
    summary, why = _FAULTS[fault]
    divided = "divided" in summary and not now.each
    return Finding(
        f"the mean loss that `{trace.subject}` logs {summary}",
        place_of_log(name, said.channel, said.step),
        number(said.value) + f" ({faults.count(fault)} of {len(faults)} times)",
        number(true) + f", the mean of {now.samples if fault == 'uneven' else now.count} losses",
        why=why + (in_line(line_of_origin(trace, "evaluation divided")) if divided else ""),
        rank=Rank.NOTE if fault in _NOTES else Rank.BROKEN,
        event=said,
    )
