"""The invariants of what a loss is made of: its components, and the bins of a likelihood."""

from collections.abc import Iterator
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Sample, Trace
from trainguard.invariants.wording import number, of


@invariant("loss", probe="components", needs={"components"}, per="device")
def components_are_balanced(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    No component of the loss drowns the others.

    Judges: the median norm of each component's gradient over the declared ranges, times its weight
        in the total where that can be seen.
    Allows: the strongest at most 1000 times the weakest that has a gradient.
    Misses: imbalances that only the model's own outputs show.
    Why: with equal weights and unequal scales the largest one is the only one that is learned.
    Source: flat-loss-autoencoder, sections 3 and 4.
    """
    pulls = {s.label: s for s in of(trace, "component") if isfinite(s.measured) and s.measured > 0}
    if len(pulls) < 2:
        return
    strongest = max(pulls.values(), key=lambda s: s.measured)
    weakest = min(pulls.values(), key=lambda s: s.measured)
    ratio = strongest.measured / weakest.measured
    allowed = trace.limit("components_are_balanced", 1e3)
    if ratio > allowed:
        yield Finding(
            f"one component of `{trace.subject}` drowns another",
            at=f"{strongest.label} against {weakest.label}",
            measured=f"{number(strongest.measured)} against {number(weakest.measured)}, "
            f"{number(ratio)} times",
            allowed=f"at most {number(allowed)} times",
            why="perhaps inputs of different scales, or weights that do not make up for them",
        )


@invariant("loss", probe="bins", needs={"likelihood"}, per="device")
def likelihood_sums_to_one(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The probabilities exp(-loss) of all values of the target sum to one.

    Judges: the sum over every value of the declared target, in float64, with one element.
    Allows: 1 within 1e-3.
    Misses: a loss in bits or averaged over more than the declared dimensions.
    Why: with a wrong bin width or wrong edge bins the loss is no likelihood: it can be lowered
        without predicting better, and its value cannot be compared.
    Source: dml-audio-training; the 0.999 edges of the original code are wrong at 16 bits.
    """
    for sample in of(trace, "likelihood"):
        tolerance = trace.limit("likelihood_sums_to_one", 1e-3)
        if not abs(sample.measured - 1) <= tolerance:
            yield Finding(
                f"the probabilities of `{trace.subject}` do not sum to one",
                at=f"every value of {sample.input}",
                measured=number(sample.measured),
                allowed=f"1 within {number(tolerance)}",
                why="perhaps the bin width, the edge bins, or an approximation used too far",
                event=sample,
            )
