"""Judgement of what adds up over evaluations: whether a mean that is said is over one of them."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # evaluations that agree
_MORE = 3  # where sums of training stand beside, of which a script says much


@invariant("loop", evidence=has_probe("meter", "nothing added up the samples of an evaluation"))
def meters_begin_anew(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Metrics are reset before each evaluation, so that they cover its own samples only.

    Judges: variables of the running functions, and what has numbers, lists of them or small tables
        in these: what is at the end of each evaluation what it is before the next one, and grows in
        that. Whether what it comes to over several evaluations is said after two of them, and what
        this one alone comes to is not; and the same for what batches of training have added to
        before: a sum divided by a number of samples or batches; precision, F1 and intersection over
        union of what was counted as right and as wrong; metrics of a table or of two lists of
        classes; areas, roots of errors and the like of two lists of scores and targets.
    Allows: totals that nothing is divided by, counts that begin anew, and times.
    Misses: other metrics; what is said of less than 3 evaluations, or more than 2 objects deep;
        what is evaluated after each step.
    Why: a metric that goes on from one evaluation to the next lags behind, so that schedules,
        early stopping and the choice of the best model follow the past.
    Source: torchmetrics (outside of Lightning, reset() is the user's to call); pytorch/examples
        (imagenet/main.py makes its AverageMeter anew in each epoch).
    """
    for probe in events(trace, Probe):
        if probe.probe == "meter" and probe.step >= _LEAST:
            yield Finding(
                f"a metric that `{trace.subject}` reports includes earlier evaluations",
                f"`{probe.label}`, after {probe.step} evaluations",
                integer(probe.measured, "samples"),
                integer(probe.reference, "samples") + ", which the evaluation has",
                why="reset the accumulated counts, sums or lists before each evaluation",
                event=probe,
            )
        elif probe.probe == "taught meter" and probe.step >= _MORE:
            both, own = "of training and of the evaluation", "of the evaluation"
            counted = probe.measured > 0  # else it is divided by how long the evaluation is
            yield Finding(
                f"an evaluation metric of `{trace.subject}` includes training batches",
                f"`{probe.label}`, after {probe.step} evaluations",
                integer(probe.measured, f"counted, {both}") if counted else f"sums {both}",
                integer(probe.reference, f"counted, {own}") if counted else f"sums {own} alone",
                why="reset the accumulated counts, sums or lists between training and evaluation",
                event=probe,
            )
