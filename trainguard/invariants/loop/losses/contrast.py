"""Judgements of losses that tell which samples belong together."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import (
    count,
    events,
    main_course,
    middle,
    rates_rise,
    stretch,
)
from trainguard.invariants.wording import number

_LEAST_STEPS = 48  # as of other losses that are held against a constant prediction
_CHANCE = 0.98  # of what a model that knows nothing loses; the same as of those
_FALLS = 0.99  # of two quarters before: tables of pairs have as many terms, and little noise
_SHALLOW = 0.9  # of that, where not even the best scores lose less
_WORST = 2.0  # times that: whoever loses more is told so by other judgements
_BOTH_WAYS = 2  # directions of a table whose losses may be added up
_ONE = 0.8  # mean cosine between samples: of directions at random it is zero
_NEAR = 0.5  # of which a note is made: half of the way
_SHRUNK = 0.25  # of a spread: what is drawn at first is scaled by less, mostly
_LOOKS = 3  # at the losses of a run
_ALONE = 0.9  # of the backward passes: their loss is one that torch's functions tell of


@invariant(
    "loop",
    evidence=either(
        has_probe("self", "no loss was over a table of all pairs of samples"),
        has_probe("own choice", "no loss was over a table of all pairs of samples"),
    ),
)
def samples_are_not_their_own_negatives(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A contrastive loss excludes the comparison of each sample with itself.

    Judges: cross_entropy of a table with a row and a column for each sample: whether its diagonal
        is the same number in all rows, the highest of each, and never the target, in all of the
        first 8 calls of a place. So it is where vectors of length 1 are compared with themselves.
        Of losses by hand, the tables that `logsumexp`, `log_softmax` or a sum of `exp` goes over,
        where the loss takes other entries of the table as well, its positives. And `min`, `max`
        and `topk` of one along an axis of such a table, of vectors with themselves: whether each
        row chooses its own column, in all of 3 looks or more.
    Allows: a diagonal that is masked, or taken off a sum; one that is the target, as between two
        views, or among the positives; tables that nothing is taken of but their sums; what is
        greatest in a row, and taken off that row.
    Misses: vectors that are not normalised; positives that are computed apart from the table.
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
        if probe.probe == "own choice" and _LOOKS <= probe.measured == probe.reference:
            yield Finding(
                f"each sample of `{trace.subject}` is picked as its own best match",
                f"the {probe.label} of each row of a table of samples with themselves",
                "its own, in " + portion(probe.measured, probe.reference, "tables"),
                "that of another sample",
                why="what is nearest to a sample is the sample itself, whatever the model does:"
                " fill the diagonal before the choice",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("choice", "nothing was chosen of a masked table"))
def chosen_entries_are_not_masked(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss that takes the min or max of a masked matrix selects unmasked entries.

    Judges: `min` and `max` along an axis of a table that was multiplied with zeros and ones, in the
        graph of a loss: whether the chosen entry of each row is one that is times zero, in all
        looks (steps 1, 2, 3, 5, 9, 17, 33 and 65), of which there are 3 or more. Rows that are
        masked as a whole, or not at all, are not counted; 4 others must be there.
    Allows: a single row, in a single look, in which an entry is chosen that the mask leaves.
    Misses: `amin`, `amax`, `topk` and `sort`; masks that are not multiplied with.
    Why: zero is the least of all distances: the hardest negative is then always a masked entry, its
        distance is zero whatever the model does, and nothing that is chosen so has a gradient.
    Source: Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification,
        equation 5; omoindrot/tensorflow-triplet-loss, which adds the greatest distance instead.
    """
    for probe in [p for p in events(trace, Probe) if p.probe == "choice"]:
        yield Finding(
            f"a loss of `{trace.subject}` takes its min or max from masked entries only",
            probe.label,
            "masked in every row, " + portion(probe.measured, probe.reference, "looks"),
            "masked in no row that has another",
            why="fill what is masked with inf before `min`, or with -inf before `max`",
            event=probe,
        )


@invariant("loop", evidence=has_probe("view", "no loss was over a table of pairs of samples"))
def views_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The two views of a positive pair in a contrastive loss are not identical.

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
                f"the positive pairs of a contrastive loss of `{trace.subject}` are identical",
                "its scores at the targets",
                "the same, and the highest, " + portion(probe.measured, probe.reference, "times"),
                "different ones, as of two views of each sample",
                why="perhaps one view is used twice: draw the augmentation for each of them",
                event=probe,
            )


@invariant("loop", evidence=has_probe("agreement", "no loss was nothing but agreement of pairs"))
def agreement_keeps_samples_apart(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A similarity loss without negatives does not collapse all samples to one embedding.

    Judges: losses that are sums of cosines, or of squared distances between rows of length one, and
        of nothing else, with a gradient on both sides of each: the mean cosine between different
        samples, on the side where it is the lowest, at the last look. Above 0.5 it is a note. And,
        as a note, distances of rows of any length whose two sides both are made of what learns:
        whether samples are a quarter as far apart as at first, or less.
    Allows: 0.8 (limit); a side without a gradient, as that of a momentum encoder; any other term;
        outputs that are whitened or normalised over the batch, since these stay apart.
    Misses: views with more axes than two, distances written as `(p - z) ** 2`, accelerators.
    Why: the loss is lowest where the output is one vector, whatever the input: without detach() on
        one side, nothing else can be learned.
    Source: Chen and He 2020, Exploring Simple Siamese Representation Learning, section 4.1.
    """
    limit = trace.limit("agreement_keeps_samples_apart", _ONE)
    for probe in events(trace, Probe):
        near = probe.measured > min(limit, _NEAR) and probe.step >= _LOOKS
        if probe.probe == "agreement" and near:
            yield Finding(
                f"the embeddings of `{trace.subject}` collapse towards one vector",
                "both sides of its agreement",
                "cosine between samples " + number(probe.measured),
                "at most " + number(limit) + f"; it was {probe.reference:.3g} at first",
                why="both sides learn: perhaps one of them lacks detach(), or a term that keeps"
                " samples apart is missing",
                rank=Rank.BROKEN if probe.measured > limit else Rank.NOTE,
                event=probe,
            )
        elif probe.probe == "shrinking" and probe.measured <= _SHRUNK and probe.step >= _LOOKS:
            yield note(
                f"both sides of the only distance that `{trace.subject}` learns from shrink",
                "both sides of its loss",
                number(probe.measured, "times") + " as far between samples as at first",
                "above " + number(_SHRUNK, "times"),
                why="both sides are made of what learns, and are nearest where they are the same"
                " for all samples: compare one with data, or detach() it",
                event=probe,
            )


@invariant("loop", evidence=has_probe("pairs", "no loss was a softmax over pairs of samples alone"))
def partners_are_found(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A contrastive loss ends below chance level, the log of the number of candidates.

    Judges: losses, of torch or by hand, that are made of a softmax over products of what was made
        in the step, and of nothing else with more than one parameter: in each quarter of the run
        against the logarithm of the number of candidates, those that are masked left out. Broken
        where the scores are of vectors of length one, and their temperature keeps even the best
        of them above 90 % of that. Else a note.
    Allows: 0.98 (limit) of it; a loss that falls by 1 % from the second quarter of the run to the
        last; rates that still rise; fewer than 48 steps, or 8 candidates.
    Misses: terms beside others, on purpose at chance where a gradient is reversed; cosines that
        are divided by their norms after the product; accelerators.
    Why: shuffled pairs, views of two samples, and temperatures that multiply where they were meant
        to divide look like a loss that has converged.
    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning, table 5: temperatures.
    """
    limit = trace.limit("partners_are_found", _CHANCE)
    course = main_course(trace)
    fits = events(trace, BaselineFit)
    known = any(fit.only >= _ALONE and fit.calls >= _LEAST_STEPS for fit in fits)
    if course is None or count(course.steps) < _LEAST_STEPS or known or rates_rise(trace):
        return
    losses = [middle(s.loss for s in stretch(course.steps, q / 4, (q + 1) / 4)) for q in range(4)]
    for probe in (p for p in events(trace, Probe) if p.probe == "pairs"):
        chances = (times * probe.measured for times in (_BOTH_WAYS, 1))
        near = [c for c in chances if all(limit * c <= loss <= _WORST * c for loss in losses)]
        if near and losses[3] >= _FALLS * losses[1]:
            yield _describe_chance(trace, probe, losses[3], near[0])


def _describe_chance(trace: Trace[Event], probe: Probe, loss: float, chance: float) -> Finding:
    """Return the finding about a loss that stays where it is for a model that knows nothing."""
    shallow = probe.reference >= _SHALLOW * probe.measured
    return Finding(
        f"a contrastive loss of `{trace.subject}` ends no better than a model that knows nothing",
        f"a softmax over pairs, {probe.label}, in the last quarter of the run",
        "loss " + number(loss),
        "below " + number(_CHANCE * chance) + f": {number(chance)} is that of equal scores",
        why="vectors of length one with this temperature lose at least"
        f" {probe.reference:.4g} for each: perhaps it multiplies where it was meant to divide"
        if shallow
        else "perhaps the two that belong together come from different samples (data that were"
        " shuffled apart), features have collapsed, or the rate is far too low",
        rank=Rank.BROKEN if shallow else Rank.NOTE,
        event=probe,
    )
