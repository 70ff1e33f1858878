"""Judgements of losses that tell which samples belong together."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant("loop", evidence=has_probe("self", "no loss was over a table of all pairs of samples"))
def samples_are_not_their_own_negatives(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A contrastive loss leaves out the comparison of each sample with itself.

    Judges: cross_entropy of a table with a row and a column for each sample: whether its diagonal
        is the same number in all rows, the highest of each, and never the target, in all of the
        first 8 calls of a place. So it is where vectors of length 1 are compared with themselves.
    Allows: a diagonal that is masked, and one that is the target, as between two views.
    Misses: losses by hand; vectors that are not normalised.
    Why: the highest score of all is one that can never be right: the loss has a floor, and what is
        learned is mostly to make up for it.
    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning, equation 1 (k is not i).
    """
    for probe in events(trace, Probe):
        if probe.probe == "self" and probe.measured == probe.reference:
            yield Finding(
                f"a contrastive loss of `{trace.subject}` has each sample among its own negatives",
                "the diagonal of its scores",
                "the same, and the highest, " + portion(probe.measured, probe.reference, "times"),
                "left out",
                why="fill the diagonal with -inf before the loss",
                event=probe,
            )


@invariant("loop", evidence=has_probe("view", "no loss was over a table of pairs of samples"))
def views_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    What a contrastive loss is to bring together is not the same thing.

    Judges: cross_entropy of a table with a row for each sample and as many columns, or more:
        whether the scores at the targets are the same number in all rows, the highest of each, in
        all of the first 8 calls of a place. So it is where a vector of length 1 is compared with
        itself.
    Allows: a model that has learned to make them alike, as it does not begin with that.
    Misses: losses by hand, and those of pairs alone; vectors that are not normalised; models with
        dropout, by which two passes of one input differ.
    Why: two views of a sample that are one and the same teach nothing: what remains of the loss
        only pushes samples apart.
    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning, figure 5 and section 3;
        sthalles/SimCLR, whose views are `[transform(x) for i in range(n_views)]`.
    """
    for probe in events(trace, Probe):
        if probe.probe == "view" and probe.measured == probe.reference:
            yield Finding(
                f"a contrastive loss of `{trace.subject}` compares samples with themselves",
                "its scores at the targets",
                "the same, and the highest, " + portion(probe.measured, probe.reference, "times"),
                "different ones, as of two views of each sample",
                why="perhaps one view is used twice: draw the augmentation for each of them",
                event=probe,
            )
