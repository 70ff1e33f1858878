"""Judgements of losses that take the best of several alternatives."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, number
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 3  # looks
_OTHERS = 0.15  # of the samples, in each look: they were 0.27 to 0.75 of batches with two orders


@invariant(
    "loop", evidence=has_probe("batch choice", "no loss took the best of errors over a batch")
)
def samples_choose_for_themselves(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss that takes the best of several alternatives chooses per sample, before the mean.

    Judges: min, amin and minimum (max, of what a loss takes off) of numbers that are each a mean or
        sum over a batch, of one output of a module held against the same targets in several orders,
        or of several parts of it held against the same targets. In 3 looks or more, at steps 8, 16,
        32 and 64: whether another alternative than the one of the batch is better for 15% of the
        samples or more, in each look. The samples were drawn by a loader, or by places in a
        variable that change.
    Notes: the same of orders, of batches that are made some other way: the rows may be the frames
        of one recording. Parts of which one is best for nearly all: the others do not learn.
    Allows: an order that nearly all samples share; parts for rows that nobody has drawn, as all
        agents of a scene; the best of several models, and of losses that are no alternatives.
    Misses: choices in Python (`if loss < best`), which leave one alternative in the graph; targets
        that differ otherwise, as by a sign; names of classes; outputs whose first axis is none of
        samples.
    Why: the network returns its parts in an order that differs from sample to sample: one order
        for all makes it learn their mean.
    Source: Yu et al. 2017, Permutation Invariant Training (arXiv 1607.00325); pytorch/audio pull
        request 894: "Each samples should be shuffled separately".
    """
    for probe in events(trace, Probe):
        if probe.probe != "batch choice" or probe.reference < _LEAST:
            continue
        drawn, split, ordered = probe.step > 0, probe.measured >= _OTHERS, probe.label == "order"
        if not (split and (drawn or ordered)) and not (drawn and not ordered):
            continue
        yield Finding(
            f"a loss of `{trace.subject}` picks one alternative for the whole batch",
            "the best of several "
            + ("orders of the targets" if ordered else "parts of an output")
            + ", each a mean over the batch",
            number(probe.measured, "of the samples, or more, would have chosen another", ".2f")
            if split
            else integer(1, "choice for a batch: the other parts do not learn"),
            integer(1, "choice for each sample"),
            why="keep the errors of each sample, choose, then take the mean:"
            " torch.stack([error.flatten(1).mean(1) for error in errors]).amin(0).mean()",
            rank=Rank.BROKEN if drawn and split else Rank.NOTE,
            event=probe,
        )
