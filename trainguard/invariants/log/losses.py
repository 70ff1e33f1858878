"""Judgements of the training loss of a log."""

from collections.abc import Iterator
from math import log

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import LOSSES, at, losses, part_of, setting, spread, typical
from trainguard.invariants.loop.evidence import both
from trainguard.invariants.wording import number

_LEAST = 10  # rows
_RISEN = 2.0
_SPIKE = 8.0  # times the spread of the losses before
_COUNTS = ("vocab_size", "n_vocab", "vocabulary_size", "num_classes", "n_classes")
_CHANCE = 0.98  # of the loss of always predicting every class alike


def _classes(trace: Trace[Event]) -> float | None:
    """Return over how many classes the loss is promised to be, or may be by the settings."""
    return trace.promise("classes") or setting(trace, _COUNTS)


@invariant(
    "log",
    evidence=both(
        LOSSES, lambda trace: "" if _classes(trace) else "no number of classes was promised or told"
    ),
)
def logged_loss_beats_chance(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A cross-entropy loss ends below that of a uniform guess over the classes.

    Judges: with promise classes, logs of 10 rows with a loss or more: the median of the last
        quarter against the logarithm of the number of classes. Without it, whether that is within
        2 % of the logarithm of the vocab_size or num_classes that settings beside the log tell.
    Allows: 0.98 (limit) of it. What is found is a note: targets may be smoothed, terms be added.
    Misses: classes that are not equally frequent, of which a constant knows the commonest.
    Why: a model that has learned nothing has a loss that looks like one: 2.303 for ten classes.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): verify the loss at the beginning.
    """
    told, classes = losses(trace), _classes(trace)
    if not classes or classes <= 1 or len(told) < _LEAST:
        return
    end = typical(part_of(told, 0.75, 1))
    beaten = trace.limit("logged_loss_beats_chance", _CHANCE) * log(classes)
    # The settings tell of classes, but not that the loss is over them: another one lies elsewhere.
    if end >= beaten and (trace.promise("classes") or end <= (2 - _CHANCE) * log(classes)):
        yield note(
            f"the loss of `{trace.subject}` ends no better than that of a constant",
            at(trace, told[-1][0]),
            number(end) + " in the last quarter",
            "below " + number(beaten),
            why="a model that gives each class the same chance has a loss of log(classes)",
            event=told[-1][0],
        )


@invariant("log", evidence=LOSSES)
def loss_recovers_from_spikes(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The loss recovers after a spike.

    Judges: logs of 40 rows or more with a loss above zero: the level from each row to the end
        against the lowest level before it.
    Allows: a level of 2 times (limit) the lowest one, and 8 times the spread of the losses there;
        spikes that are over before the last tenth of the log. What is found is a note.
    Misses: a divergence that is slower than the noise; one in the last tenth.
    Why: after a spike that it does not recover from, a run learns from the beginning again, or
        never.
    Source: Chowdhery et al., PaLM (arXiv 2204.02311), section 5.1: training instability.
    """
    told = losses(trace)
    if len(told) < 4 * _LEAST or not all(value > 0 for _, value in told):
        return
    tenths = [part_of(told, n / 10, (n + 1) / 10) for n in range(10)]
    levels = [typical(tenth) for tenth in tenths]
    most = trace.limit("loss_recovers_from_spikes", _RISEN)
    for n in range(1, 9):
        best = min(range(n), key=levels.__getitem__)
        noise = spread(value for _, value in tenths[best])
        limit = max(most * levels[best], levels[best] + _SPIKE * noise)
        if min(levels[n:]) <= limit:
            continue
        begin = next(row for row, value in told[len(told) * (n - 1) // 10 :] if value > limit)
        yield note(
            f"the loss of `{trace.subject}` has leapt up and not come down again",
            at(trace, begin),
            number(levels[-1]) + " in the last tenth of the log",
            "at most " + number(limit) + f": it was {number(levels[best])}",
            why="perhaps a rate that is too high; go back to a checkpoint before it, skip those"
            " batches, lower the rate or clip",
            event=begin,
        )
        return
