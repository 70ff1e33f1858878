"""Judgements of the units in which a model is evaluated."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import number
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
    What is predicted in an evaluation is held against targets in the units of the training.

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
                f"an evaluation of `{trace.subject}` has targets in other units than its training",
                "predictions that follow their targets",
                number(probe.measured, "", ".3g") + " deviations between their means, and a"
                f" deviation of the targets {probe.reference:.3g} times that of the predictions",
                "about the same, as in training",
                why="bring the predictions back into the units of the targets, or the targets of"
                " the evaluation into those of the training, by the same numbers",
                event=probe,
            )
