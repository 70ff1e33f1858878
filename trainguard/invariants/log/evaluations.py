"""Judgements of what is evaluated beside the training loss of a log."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, at_step
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Logged
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import LOSSES, losses, part_of, typical
from trainguard.invariants.loop.evidence import both, either, some
from trainguard.invariants.loop.wording import events, finite, percent
from trainguard.invariants.wording import number

_FEW = 5  # values
_LEARNED = 0.9  # of the training loss at its beginning
_OVERFITTED = 1.1  # times the best validation loss
_SAME = 1e-7  # of a value: float32 has no finer digits
_ALL = 1.0
_BEST = {1.0, 100.0}  # of what is a share
_FAR_BELOW = 0.1  # of the training loss: dropout, mixup and smoothing raise it by less


@invariant(
    "log",
    evidence=both(
        LOSSES,
        either(
            some(Evaluation, "no validation loss or metric was logged"),
            some(Logged, "no validation loss or metric was logged"),
        ),
    ),
)
def validation_follows_training(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Validation metrics change during training, and the validation loss shows no overfitting.

    Judges: validation losses and metrics with 5 values or more, in logs whose training loss falls
        by a tenth: values that are all the same; a validation loss that ends above 1.1 times
        (limit) its best while the training loss falls on.
    Allows: validation losses of zero, which have a judgement of their own; metrics that are 1 or
        100 in all evaluations, as that of an easy part of the task. What is found is a note.
    Misses: a metric that moves and measures the wrong thing, or compares a thing with itself.
    Why: a metric that stands still is measured on another model, or on no data; past its best step
        a model learns its samples by heart.
    Source: keras-team/keras issue 12863; Prechelt, Early Stopping - But When? (1998).
    """
    told = losses(trace)
    if len(told) < _FEW:
        return
    begin, end = typical(part_of(told, 0, 0.25)), typical(part_of(told, 0.75, 1))
    learned = end < _LEARNED * begin
    for name, values in _series(trace).items():
        known = [(step, value) for step, value in values if value == value]
        if len(known) < _FEW:
            continue
        numbers = [value for _, value in known]
        if not isinstance(values, _LoggedLosses) and {*numbers} <= _BEST:
            continue
        if learned and max(numbers) - min(numbers) <= _SAME * abs(numbers[0]) and any(numbers):
            yield note(
                f"an evaluation of `{trace.subject}` never changes while the training loss falls",
                f"{name}, " + at_step(known[0][0]) + f" to {known[-1][0]}",
                number(known[0][1]) + f" in all {len(known)} evaluations",
                "values that differ",
                why="perhaps it is measured on another model, on no data, or once only",
            )
        elif isinstance(values, _LoggedLosses):
            yield from _overfits(trace, name, known, learned)


@invariant("log", evidence=some(Evaluation, "no validation loss was logged"))
def validation_loss_is_possible(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A validation loss is neither below its minimum nor far below the training loss.

    Judges: with promise classes, validation losses below zero: broken, since a cross-entropy has
        none. Without it, 5 validation losses or more that all lie below 0.1 times (limit) the
        lowest twentieth of the training loss, in the second half of a log.
    Allows: losses below zero that nobody calls a cross-entropy, as a density has them; a training
        loss that dropout and augmentation raise. What lies far below it is a note.
    Misses: a validation loss that is low because its samples were trained on.
    Why: a loss that is divided twice, or whose padding counts as right, is chosen as the best.
    Source: yanx27/Pointnet_Pointnet2_pytorch issue 30 (nll_loss without log_softmax);
        unslothai/unsloth pull request 11337 (divided by the accumulated batches).
    """
    every = {e.module: None for e in events(trace, Evaluation) if isfinite(e.loss)}
    told = sorted(value for _, value in part_of(losses(trace), 0.5, 1))
    level = told[len(told) // 20] if len(told) >= _FEW else 0.0
    most = trace.limit("validation_loss_is_possible", _FAR_BELOW) * level
    for name in every:
        own = [e for e in events(trace, Evaluation) if e.module == name and isfinite(e.loss)]
        below = [e for e in own if e.loss < 0]
        if below and trace.promise("classes") is not None:
            yield _impossible(trace, below, len(own), "at least " + number(0), Rank.BROKEN)
            continue
        late = own[len(own) // 2 :]
        if len(late) >= _FEW and level > 0 and all(0 < e.loss < most for e in late):
            allowed = "at least " + number(most) + ": the training loss has " + number(level)
            yield _impossible(trace, late, len(late), allowed, Rank.NOTE)


def _impossible(
    trace: Trace[Any], low: list[Evaluation], among: int, allowed: str, rank: Rank
) -> Finding:
    """Return the finding about validation losses that are too good."""
    return Finding(
        f"the validation loss of `{trace.subject}` is "
        + ("below zero" if rank is Rank.BROKEN else "far below the training loss"),
        f"{low[0].module}, " + at_step(low[0].step),
        number(low[0].loss) + f", and so in {len(low)} of {among} evaluations",
        allowed,
        why="a cross-entropy is never negative: check its sign and the probabilities it gets"
        if rank is Rank.BROKEN
        else "perhaps it is divided twice, counts padding as correct, or is another loss",
        rank=rank,
        event=low[0],
    )


class _LoggedLosses(list[tuple[int, float]]):
    """The steps and values of a validation loss; those of a metric are a plain list."""


def _series(trace: Trace[Any]) -> dict[str, list[tuple[int, float]]]:
    """Return what was evaluated, by name."""
    series: dict[str, list[tuple[int, float]]] = {}
    for one in events(trace, Evaluation):
        series.setdefault(one.module, _LoggedLosses()).append((one.step, one.loss))
    for said in events(trace, Logged):
        series.setdefault(said.name, []).append((said.step, said.value))
    return series


def _overfits(
    trace: Trace[Any], name: str, known: list[tuple[int, float]], learned: bool
) -> Iterator[Finding]:
    """Yield a note where a validation loss has left its best behind."""
    numbers = finite(value for _, value in known)
    step, best = min(known, key=lambda pair: pair[1])
    most = trace.limit("validation_follows_training", _OVERFITTED)
    late = numbers[-max(2, len(numbers) // 5) :]
    if learned and best > 0 and min(late) > most * best:
        yield note(
            f"the validation loss of `{trace.subject}` rises while the training loss falls",
            f"{name}, best at " + at_step(step),
            number(late[-1]) + f" at the end, {percent(late[-1] / best - _ALL)} above the best",
            Measure(f"at most {most:g} times {best:.4g}", most * best),
            why="the model learns its samples by heart: stop at its best, or regularise",
        )
