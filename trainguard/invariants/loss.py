"""The invariants of losses. Each judges the trace of one probe; thresholds are in `Allows`."""

from collections.abc import Iterator
from math import inf, isfinite, isnan

from trainguard.catalogue import invariant
from trainguard.finding import Finding, Rank
from trainguard.invariants.wording import coordinate, number, share
from trainguard.trace import Sample, Trace

EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@invariant("loss")
def value_is_finite(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The loss is a finite number.

    Judges: the loss at every swept point of the declared ranges.
    Allows: no nan and no infinity.
    Misses: points inside the ranges that the sweep did not meet.
    Why: one nan in a batch makes every parameter nan in one step.
    Source: dml-audio-training, section 1A; multi-domain-vjepa3d, problem 2.
    """
    for sample in _of(trace, "value"):
        if not isfinite(sample.measured):
            yield Finding(
                f"the value of `{trace.subject}` is not finite",
                measured=f"{number(sample.measured)}  {share(sample)}",
                allowed="finite wherever the inputs are inside their declared ranges",
                why="look for a log, a division or an exp of something that can be 0 or large",
                event=sample,
            )


@invariant("loss")
def gradient_is_finite(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The gradient is finite wherever the loss is.

    Judges: every coordinate of every input's gradient, at every swept point.
    Allows: no nan and no infinity.
    Misses: points inside the ranges that the sweep did not meet.
    Why: torch.where computes both branches, and nan times zero is nan: the branch that was not
        taken leaks into the gradient. A norm or a square root has no slope at zero.
    Source: dml-audio-training, section 1A; pytorch/pytorch issue 10729.
    """
    for sample in _of(trace, "gradient"):
        if not isfinite(sample.measured):
            nan = isnan(sample.measured)
            yield Finding(
                f"the gradient of `{trace.subject}` is not finite",
                at=coordinate(sample),
                measured=f"{number(sample.measured)}  {share(sample)}",
                allowed="finite wherever the inputs are inside their declared ranges",
                why=(
                    "perhaps a torch.where branch that was not taken, or a norm or root at zero"
                    if nan
                    else "perhaps an exp, a division or a log close to its pole"
                ),
                event=sample,
            )


@invariant("loss")
def gradient_is_bounded(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The gradient does not explode.

    Judges: the largest finite gradient of every input over all swept points.
    Allows: 1e4 times the largest declared magnitude of that input (at least 1), in units of loss
        per unit of input. A limit of the subject replaces the whole product.
    Misses: explosions below that size that are still too large for the learning rate.
    Why: an exp(-log_scale) without a lower clamp, or a division by a norm that can be tiny, turns
        one sample into a step that undoes the training.
    Source: dml-audio-training, section 1A; multimodal-pipeline, section 4.
    """
    for sample in _of(trace, "largest_gradient"):
        allowed = trace.limit("gradient_is_bounded", 1e4 * _magnitude(trace, sample.input))
        if sample.measured > allowed:
            yield Finding(
                f"the gradient of `{trace.subject}` explodes",
                at=coordinate(sample),
                measured=number(sample.measured),
                allowed=f"at most {number(allowed)}",
                why="perhaps an exp without a clamp, or a division by something that can be tiny",
                event=sample,
            )


@invariant("loss", probe="plateau", per="device")
def gradient_is_alive(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Where the loss can still fall, there is a gradient to follow.

    Judges: points at which a gradient is exactly zero in float64, at the point and all around it,
        while the loss is lower elsewhere in the declared ranges: either every input's gradient is
        zero, or one element's is zero whatever the other inputs are.
    Allows: none inside `alive=` of the input, or inside its whole range where that is not given.
        An input that no gradient ever reaches is a note: it may be detached on purpose.
    Misses: gradients that are tiny and not zero; zeros of float32 that float64 does not have.
    Why: behind a clamp the loss does not change, so a parameter that gets there stays there.
    Source: dml-audio-training, section 1A and fix 3; multimodal-pipeline, section 4.
    """
    silent = {s.input for s in _of(trace, "unreached") if s.points and s.bad == s.points}
    for name in sorted(silent):
        yield Finding(
            f"no gradient of `{trace.subject}` ever reaches `{name}`",
            at=name,
            measured="0 at every point",
            allowed="a gradient somewhere, or tg.real(..., grad=False)",
            why="it is detached, or the loss does not depend on it",
            rank=Rank.NOTE,
        )
    plateaus = [
        s
        for s in _of(trace, "plateau")
        if s.measured > _fall(trace, s) and s.input not in silent
    ]
    # Where all is dead, each element is too: say it once.
    for sample in [s for s in plateaus if s.label == "whole"] or plateaus:
        whole = sample.label == "whole"
        yield Finding(
            f"{'every' if whole else 'a'} gradient of `{trace.subject}` is dead",
            at="all inputs" if whole else coordinate(sample),
            measured=f"gradient 0, while the loss can fall by {number(sample.measured)}",
            allowed=f"a gradient wherever the loss can fall by more than {number(_fall(trace, sample))}",
            why=f"perhaps a clamp of the {'loss' if whole else 'input'}: behind it nothing changes",
            event=sample,
        )


@invariant("loss", probe="line", per="device")
def gradient_is_continuous(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The loss has no jumps, so that its gradient tells where it goes.

    Judges: lines parallel to the axes, halved in float64 until the jump sits between neighbours.
    Allows: 1e-3 * (1 + |loss|), and ten times what the loss moves on either side of the place.
        Kinks are allowed: |x| and max(x, 0) have them on purpose.
    Misses: jumps so narrow that no line met them; branches that meet in value but not in slope.
    Why: branches of torch.where that do not meet make the loss jump where no gradient says so.
    Source: dml-audio-training, section 1A: nested torch.where conditions.
    """
    for sample in _of(trace, "jump"):
        allowed = 1e-3 * (1 + abs(sample.reference)) + 10 * sample.scale
        allowed = trace.limit("gradient_is_continuous", allowed)
        if sample.measured > allowed:
            yield Finding(
                f"`{trace.subject}` jumps between two neighbouring numbers",
                at=coordinate(sample),
                measured=f"a jump of {number(sample.measured)}",
                allowed=f"at most {number(allowed)}",
                why="perhaps two branches of torch.where that do not meet, or a rounding",
                event=sample,
            )


@invariant("loss", probe="difference", per="device")
def gradient_matches_finite_difference(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Autograd agrees with a central difference.

    Judges: every float64 sample at which the difference is smooth.
    Allows: |autograd - difference| <= 1e-4 * max(1, |difference|) plus the difference's own doubt,
        in loss units per input unit. Where only PyTorch's own operations are in the graph a
        disagreement is a note: a detach may be meant.
    Misses: kinks such as |x| at 0; errors that vanish in float64; places where three steps of the
        difference do not agree with one another.
    Why: a custom backward that forgets a factor, a detached factor or an in-place edit of .data
        changes the gradient and leaves the loss alone.
    Source: torch.autograd.gradcheck, which compares the same two numbers.
    """
    for sample in _of(trace, "difference"):
        tolerance = trace.limit("gradient_matches_finite_difference", 1e-4)
        allowed = tolerance * max(1.0, abs(sample.reference)) + sample.scale
        if abs(sample.measured - sample.reference) > allowed:
            custom = sample.label == "custom"
            yield Finding(
                f"the gradient of `{trace.subject}` is not the slope of its value",
                at=coordinate(sample),
                measured=number(sample.measured),
                allowed=f"{number(sample.reference)} within {number(allowed)}",
                why=(
                    "perhaps the backward of a custom autograd.Function"
                    if custom
                    else "perhaps a detach or .item() in a factor; it may be meant"
                ),
                rank=Rank.BROKEN if custom else Rank.NOTE,
                event=sample,
            )


@invariant("loss", probe="precision", per="low precision")
def low_precision_agrees(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    In bfloat16 and float16 the gradient points where float64's does.

    Judges: points whose numbers are exact in the low precision.
    Allows: an error of the gradient vector of 16 machine epsilons (bfloat16: 0.125, float16:
        0.0156), relative to its norm, or to the typical norm where its own is below that.
    Misses: errors that only build up over many steps; noise close to the minimum.
    Why: subtracting two nearly equal numbers, or dividing by a small one, makes rounding large, and
        the step follows noise. Computing such a loss in float32 inside costs little.
    Source: multi-domain-vjepa3d, mixed precision considerations.
    """
    for sample in _of(trace, "precision"):
        dtype = str(trace.conditions.get("dtype"))
        allowed = trace.limit("low_precision_agrees", 16 * EPS.get(dtype, inf))
        if sample.measured > allowed:
            yield Finding(
                f"the {dtype} gradient of `{trace.subject}` is far from the exact one",
                measured=f"relative error {number(sample.measured)}",
                allowed=f"at most {number(allowed)}",
                why="perhaps a difference of nearly equal numbers; compute it in float32 inside",
                event=sample,
            )


@invariant("loss", probe="devices", needs={"devices"}, per="subject")
def devices_agree(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Every device computes the same gradient.

    Judges: the gradient vector on each other device against the cpu's.
    Allows: a relative error of 1e-3 of (1 + the gradient's norm).
    Misses: differences below that; devices that are not in this machine.
    Why: fused kernels and reduced-precision matrix units round differently, and some are wrong.
    Source: PyTorch's notes on numerical accuracy.
    """
    for sample in _of(trace, "device"):
        allowed = trace.limit("devices_agree", 1e-3)
        if sample.measured > allowed:
            yield Finding(
                f"the gradient of `{trace.subject}` differs between cpu and {sample.label}",
                measured=f"relative error {number(sample.measured)}",
                allowed=f"at most {number(allowed)}",
                event=sample,
            )


@invariant("loss", probe="mixing", needs={"reduction"}, per="device")
def samples_do_not_mix(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The loss of a batch is what its samples give one by one.

    Judges: batches of three against their samples alone, where `reduction` promises a loss per
        sample, their sum or their mean.
    Allows: 1e-3 * (1 + |loss|), in units of loss.
    Misses: mixing that cancels in the value.
    Why: a reduction over the wrong dimension, or a normalisation over the batch, makes a sample's
        gradient depend on its neighbours, and the loss on the batch size.
    Source: flat-loss-autoencoder, section 4; common in broadcasting (N, 1) against (N,).
    """
    for sample in _of(trace, "mixing"):
        tolerance = trace.limit("samples_do_not_mix", 1e-3)
        allowed = tolerance * (1 + abs(sample.reference))
        if abs(sample.measured - sample.reference) > allowed:
            yield Finding(
                f"samples of a batch mix in `{trace.subject}`",
                at="a batch of 3",
                measured=number(sample.measured),
                allowed=f"{number(sample.reference)} within {number(allowed)}, from its samples "
                "alone",
                why="perhaps a reduction over the wrong dimension, or a count over the batch",
                event=sample,
            )


@invariant("loss", probe="padding", needs={"mask"}, per="device")
def padding_is_ignored(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    What stands in padded positions changes nothing.

    Judges: the loss before and after padded positions of one input are redrawn, and the gradient
        at padded positions.
    Allows: a change of 1e-5 * (1 + |loss|), and gradients of exactly zero.
    Misses: masks that are not declared with tg.mask.
    Why: padding that counts dilutes the loss of short samples and teaches the model to pad.
    Source: common in losses that average over the padded length.
    """
    for sample in _of(trace, "padding"):
        allowed = trace.limit("padding_is_ignored", 1e-5) * (1 + abs(sample.reference))
        if abs(sample.measured - sample.reference) > allowed:
            yield Finding(
                f"`{trace.subject}` depends on what stands in padded positions",
                at=f"{sample.input} where {sample.label} marks padding",
                measured=number(sample.measured),
                allowed=f"{number(sample.reference)} within {number(allowed)}, as before the edit",
                why="perhaps the mask is applied after a reduction, or not to this input",
                event=sample,
            )
    for sample in _of(trace, "padding_gradient"):
        if sample.measured > 0:
            yield Finding(
                f"`{trace.subject}` sends a gradient into padded positions",
                at=f"{coordinate(sample)} where {sample.label} marks padding",
                measured=number(sample.measured),
                allowed="0",
                event=sample,
            )


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
    pulls = {s.label: s for s in _of(trace, "component") if isfinite(s.measured) and s.measured > 0}
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
    for sample in _of(trace, "likelihood"):
        tolerance = trace.limit("likelihood_sums_to_one", 1e-3)
        if not abs(sample.measured - 1) <= tolerance:
            yield Finding(
                f"the probabilities of `{trace.subject}` do not sum to one",
                measured=number(sample.measured),
                allowed=f"1 within {number(tolerance)}",
                why="perhaps the bin width, the edge bins, or an approximation used too far",
                event=sample,
            )


@invariant("loss", probe="conduct", per="device")
def call_leaves_no_trace(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Calling the loss changes nothing else.

    Judges: calls on one plain point of each structure: the inputs afterwards, global settings of
        PyTorch, the global random streams, what was printed and what was warned.
    Allows: no edit of an input, no changed setting, no reseeding; printing and warning are notes.
    Misses: what is changed outside PyTorch; what only some inputs bring about.
    Why: an input edited in place changes the model's output behind its back, and a seed set in a
        loss makes every augmentation draw the same numbers.
    Source: dml-audio-training, solution 2B: clamp_ and exp_ on the head's output.
    """
    for sample in trace:
        told, measured, allowed, why = _CONDUCT[sample.quantity]
        yield Finding(
            f"`{trace.subject}` {told}",
            at=sample.input,
            measured=measured or sample.label,
            allowed=allowed,
            why=why,
            rank=Rank.BROKEN if allowed else Rank.NOTE,
            event=sample,
        )


# What a call may do besides: what is said of it, measured, allowed and guessed.
_CONDUCT = {
    "mutated": (
        "edits its input in place",
        "edited by the call",
        "the numbers that were passed in",
        "perhaps clamp_, mul_, += or an edit of .data; work on a copy",
    ),
    "changed": (
        "leaves a global setting changed",
        "",
        "as it was before the call",
        "set it once where the program starts, or put it back before returning",
    ),
    "reseeded": (
        "seeds a global random stream",
        "in the same state after calls that began with different seeds",
        "a state that follows from the seed before the call",
        "draw from a generator of its own, such as torch.Generator().manual_seed(0)",
    ),
    "printed": ("prints", "", "", ""),
    "warned": ("warns", "", "", ""),
}


def _of(trace: Trace[Sample], quantity: str) -> Iterator[Sample]:
    """Return the samples of one quantity."""
    return (sample for sample in trace if sample.quantity == quantity)


def _fall(trace: Trace[Sample], sample: Sample) -> float:
    """Return the fall of the loss, in its own units, below which a zero gradient is no loss."""
    return trace.limit("gradient_is_alive", 1e-3) * (1 + abs(sample.reference))


def _magnitude(trace: Trace[Sample], name: str) -> float:
    """Return the largest declared magnitude of an input, and at least 1."""
    return max(1.0, trace.promise(f"magnitude:{name}") or 1.0)
