"""Judgement of what adds up over evaluations: meters that nobody resets."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # evaluations that agree


@invariant("loop", evidence=has_probe("meter", "nothing added up the samples of an evaluation"))
def meters_begin_anew(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A mean that is said of an evaluation is over its own samples.

    Judges: objects, dictionaries and lists of numbers in variables of the running functions, of
        which one, or their length, grows by the number of samples in each evaluation: whether a sum
        divided by that, over this evaluation and earlier ones, is said after two of them, where the
        mean of this one alone is another number.
    Allows: totals that nothing is divided by, and counts that begin anew.
    Misses: sums over batches; meters inside of other objects; means that are not said.
    Why: a metric that goes on from one evaluation to the next lags behind, so that schedules,
        early stopping and the choice of the best model follow the past.
    Source: torchmetrics (outside of Lightning, reset() is the user's to call); pytorch/examples
        (imagenet/main.py makes its AverageMeter anew in each epoch).
    """
    for probe in events(trace, Probe):
        if probe.probe == "meter" and probe.step >= _LEAST:
            yield Finding(
                f"a mean that `{trace.subject}` says of an evaluation is over earlier ones too",
                f"`{probe.label}`, after {probe.step} evaluations",
                integer(probe.measured, "samples"),
                integer(probe.reference, "samples") + ", which the evaluation has",
                why="reset what adds up, or make it anew, before each evaluation",
                event=probe,
                source=probe.source,
            )
