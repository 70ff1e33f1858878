"""Judgements of the units in which a model is evaluated."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, number
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant(
    "loop",
    evidence=has_probe("target scale", "no evaluation had numbers that predictions follow"),
)
def evaluation_targets_keep_their_scale(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An evaluation compares predictions with targets in the same units.

    Judges: the latest predictions and targets of distances (mse_loss, l1_loss, huber_loss,
        smooth_l1_loss) in training, and in evaluations of the second half of the run; of those
        without a loss what lies beside the input. Where both have a correlation of 0.5 or more in
        training, deviations within 3 times each other and means within one of them, and a
        correlation of 0.5 in the evaluation: whether the means are there more than 3 deviations
        apart; or, with a correlation of 0.8, one deviation is 4 times the other.
    Allows: predictions that are brought back into the units of the targets; targets of another
        range that predictions follow in their size; predictions that follow nothing, or hardly vary
        yet.
    Misses: models that are still far from their targets in training; outputs of several units.
    Why: targets that are standardised for training alone make every error of an evaluation one of
        units, and the best epoch by it one of chance.
    Source: the documentation of sklearn.compose.TransformedTargetRegressor, which brings
        predictions back by itself.
    """
    for probe in events(trace, Probe):
        if probe.probe == "target scale":
            yield Finding(
                f"predictions and targets of evaluations of `{trace.subject}` differ in units",
                "predictions that follow their targets",
                number(probe.measured, "", ".3g") + " deviations between their means, and a"
                f" deviation of the targets {probe.reference:.3g} times that of the predictions",
                "about the same, as in training",
                why="bring the predictions back into the units of the targets, or the targets of"
                " the evaluation into those of the training, by the same numbers",
                event=probe,
            )


@invariant(
    "loop",
    evidence=has_probe("inverse", "no function was named as what undoes another one of the script"),
)
def inverses_undo_their_transforms(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A function named as the inverse of a transform inverts it.

    Judges: functions of one argument, and methods of one object, that the script can name where it
        computes a loss, such as `transform` and `inverse_transform`, `normalize` and
        `denormalize`, `scale_price` and `unscale_price`: both are given the targets and the inputs
        of a batch, in a forked child, whichever is the first. Broken is where none of these ways
        comes back to what it began with, within 0.1 of its deviation, in the median.
    Allows: rounding, as to 8 bits; what is cut off at a border; what takes its scale from what it
        is given, as that of one picture; functions that refuse the numbers of a batch, or whose
        results are learned.
    Misses: pairs by other names, methods of modules, functions with several arguments; runs whose
        children cannot be closed off; a wrong scale that both functions share.
    Why: errors in the units of the targets are of nothing where predictions are brought back by
        `exp(z) * std + mean` and were made by `(log(y) - mean) / std`.
    Source: mlangguth89/downscaling_benchmark pull request 65 (the order); hanlu-nju/
        channel_independent_MTSF issue 3 (the variance for the deviation); scikit-learn, whose
        FunctionTransformer has a check_inverse.
    """
    for probe in events(trace, Probe):
        if probe.probe == "inverse":
            undo, _, make = probe.label.partition(" of ")
            yield Finding(
                f"`{undo}` of `{trace.subject}` does not undo `{make}`",
                "numbers of a batch, through both",
                number(probe.measured, "", ".3g") + " of their deviation away, in the median",
                "at most " + number(probe.reference) + " of it",
                why="steps are undone in the reverse order: of (log(y) - mean) / std it is"
                " exp(z * std + mean)",
                event=probe,
            )


_BY = {"number": "all numbers"}  # otherwise it is each column, channel or feature


@invariant("loop", evidence=has_probe("batch scale", "no evaluation was given rows of numbers"))
def rows_share_one_scale(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Evaluation inputs are normalised by fixed statistics, not by those of each batch.

    Judges: the first input of evaluations of 8 rows or more, on the CPU: whether in two batches or
        more, and each one up to 8, the same columns (or channels, features, all numbers) have a
        mean of 0 and a deviation of 1, or go from 0 to 1 or -1 to 1 with a row or two at each end,
        but for rounding. Those that a loader has served sample by sample; a note of others, where
        parts of one size are followed by a smaller one.
    Allows: an evaluation of one batch; rows that are scaled each by itself; parts of several sizes,
        or of a single one, which may be subjects or tasks; columns of -1 and 1, and those that have
        the same numbers in each batch; of ranges, those of less than half of the columns, and sines
        beside their cosines; batch norm, which is inside of a model.
    Misses: trainings that do so alone; inputs after the first; more than 262144 numbers; means of
        zero without a scale.
    Why: what is predicted for a row depends on which others are in its batch: one row alone, or a
        batch of another mixture, is given to the model in a scale that it has never seen.
    Source: deepinv/deepinv issue 908 (batch-level in place of sample-level statistics);
        gzerveas/mvts_transformer issue 26.
    """
    for probe in events(trace, Probe):
        if probe.probe == "batch scale":
            name, _, by = probe.label.partition(" ")
            filled = by.startswith("range")
            yield Finding(
                f"each evaluation batch of `{trace.subject}` is normalised by its own statistics",
                f"input of {name}",
                integer(probe.measured, "batches")
                + f" of up to {probe.reference:.0f} rows, each with "
                + ("the ends 0 and 1, or -1 and 1, in " if filled else "mean 0 and deviation 1 of ")
                + _BY.get(by, "each " + by.removeprefix("range of each ")),
                "the scale of the training, which no single batch has exactly",
                why="take the "
                + ("least and the largest" if filled else "mean and the deviation")
                + " of the training rows once, before the loop, and use them for every batch, here"
                " and in training: x.mean(0) of a batch makes each row depend on its neighbours",
                rank=Rank.BROKEN if probe.step else Rank.NOTE,
                event=probe,
                source=probe.source,
            )
