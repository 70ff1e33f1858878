"""The invariants of a batch: samples stay apart, and padding stays out."""

from collections.abc import Iterator
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.trace import Sample, Trace
from trainguard.invariants.wording import coordinate, number, of


@invariant("loss", probe="mixing", needs={"reduction"}, per="device")
def samples_do_not_mix(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    A batch loss equals its samples' losses taken one by one, reduced as declared.

    Judges: batches of three against their samples alone, where `reduction` promises a loss per
        sample, their sum or their mean.
    Allows: 1e-3 * (1 + |loss|), in units of loss.
    Misses: mixing that cancels in the value.
    Why: a reduction over the wrong dimension, or a normalisation over the batch, makes a sample's
        gradient depend on its neighbours, and the loss on the batch size.
    Source: pytorch/pytorch issue 16045 (broadcasting (N, 1) against (N,)).
    """
    for sample in of(trace, "mixing"):
        tolerance = trace.limit("samples_do_not_mix", 1e-3)
        allowed = tolerance * (1 + abs(sample.reference))
        if abs(sample.measured - sample.reference) > allowed:
            yield Finding(
                f"samples of a batch mix in `{trace.subject}`",
                at="a batch of 3",
                measured=number(sample.measured),
                allowed=number(sample.reference)
                + f" within {number(allowed)}, what its samples give one by one",
                why="perhaps a maximum, a mean or a count over the batch, or a wrong dimension",
                event=sample,
            )


@invariant("loss", probe="padding", needs={"mask"}, per="device")
def padding_is_ignored(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Neither the values in padded positions nor their number affect the loss.

    Judges: the loss with any numbers in the padded positions of one input against the loss with
        zeros there, and the gradient at padded positions; the loss with three padded positions
        more, where `sizes` does not fix how many there are.
    Allows: a change of 1e-5 * (1 + |loss|), and gradients of exactly zero.
    Misses: masks that are not declared with tg.mask.
    Why: padding that counts dilutes the loss of short samples and teaches the model to pad.
    Source: PyTorch, torch.nn.CrossEntropyLoss (ignore_index, which its mean leaves out).
    """
    for sample in of(trace, "padding"):
        allowed = trace.limit("padding_is_ignored", 1e-5) * (1 + abs(sample.reference))
        if abs(sample.measured - sample.reference) > allowed:
            yield Finding(
                f"`{trace.subject}` depends on what stands in padded positions",
                at=f"{sample.input} where {sample.label} marks padding",
                measured=number(sample.measured),
                allowed=number(sample.reference)
                + f" within {number(allowed)}, as with {number(sample.scale)} there",
                why="perhaps the mask is applied after a reduction, or not to this input",
                event=sample,
            )
    for sample in of(trace, "padding_length"):
        allowed = trace.limit("padding_is_ignored", 1e-5) * (1 + abs(sample.reference))
        if abs(sample.measured - sample.reference) > allowed:
            yield Finding(
                f"`{trace.subject}` depends on how much padding there is",
                at=f"positions that {sample.label} marks as padding",
                measured=number(sample.measured),
                allowed=number(sample.reference)
                + f" within {number(allowed)}, as with {number(sample.scale)} of them more",
                why="perhaps a mean over all positions: divide by how many are kept; where their"
                " number never changes, sizes={...: N} says so",
                event=sample,
            )
    for sample in of(trace, "padding_gradient"):
        if sample.measured > 0:
            yield Finding(
                f"`{trace.subject}` sends a gradient into padded positions",
                at=coordinate(sample) + f" where {sample.label} marks padding",
                measured=number(sample.measured),
                allowed=integer(0),
                why="perhaps the mask is applied after a reduction, or only to the value",
                event=sample,
            )


@invariant("loss", probe="relations", needs={"relations"}, per="device")
def relations_hold(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The declared relations between the losses of original and edited inputs hold.

    Judges: `then(before, after)` of each `tg.Relation`, on the losses of drawn inputs and of the
        same inputs edited.
    Allows: what `then` allows.
    Misses: inputs that were not drawn.
    Why: what must hold between two calls needs no right answer: permuted classes permute scores,
        and padding that is added changes nothing.
    Source: Chen et al., Metamorphic Testing (arXiv 2002.12543).
    """
    for sample in of(trace, "relation"):
        if sample.scale:
            yield Finding(
                f"the relation {sample.label!r} of `{trace.subject}` is broken",
                at=portion(sample.bad, sample.points, "batches that were drawn"),
                measured=number(sample.measured) + " with the inputs edited",
                allowed="what then(before, after) allows, from " + number(sample.reference),
                event=sample,
            )


@invariant("loss", probe="components", needs={"components"}, per="device")
def components_are_balanced(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The gradient of no loss component is dwarfed by that of another.

    Judges: the median norm of each component's gradient over the declared ranges, times its weight
        in the total where that can be seen.
    Allows: the strongest at most 1000 times the weakest that has a gradient.
    Misses: imbalances that only the model's own outputs show.
    Why: with equal weights and unequal scales the largest one is the only one that is learned.
    Source: Chen et al., GradNorm (arXiv 1711.02257).
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
            + number(ratio, "times"),
            allowed="at most " + number(allowed, "times"),
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
    Source: Salimans et al., PixelCNN++ (arXiv 1701.05517), section 2.1; the 0.999 edges of its code
        are wrong at 16 bits.
    """
    for sample in of(trace, "likelihood"):
        tolerance = trace.limit("likelihood_sums_to_one", 1e-3)
        if not abs(sample.measured - 1) <= tolerance:
            yield Finding(
                f"the probabilities of `{trace.subject}` do not sum to one",
                at=f"every value of {sample.input}",
                measured=number(sample.measured),
                allowed=integer(1) + f" within {number(tolerance)}",
                why="perhaps the bin width, the edge bins, or an approximation used too far",
                event=sample,
            )
