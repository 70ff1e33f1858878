"""The invariants of the gradient's truth: alive, continuous, the slope of the value."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer
from trainguard.events.trace import Sample, Trace
from trainguard.invariants.wording import coordinate, number, of


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
    Source: openai/pixel-cnn, pixel_cnn_pp/nn.py (log_scales are cut off at -7, where their gradient
        is zero).
    """
    silent = {s.input for s in of(trace, "unreached") if s.points and s.bad == s.points}
    for name in sorted(silent):
        yield note(
            f"no gradient of `{trace.subject}` ever reaches `{name}`",
            at=name,
            measured=integer(0) + " at every point",
            allowed="a gradient somewhere, or tg.real(..., grad=False)",
            why="it is detached, or the loss does not depend on it",
        )
    plateaus = [
        s for s in of(trace, "plateau") if s.measured > _fall(trace, s) and s.input not in silent
    ]
    # Where all is dead, each element is too: say it once.
    for sample in [s for s in plateaus if s.label == "whole"] or plateaus:
        whole = sample.label == "whole"
        yield Finding(
            f"{'every' if whole else 'a'} gradient of `{trace.subject}` is dead",
            at="all inputs" if whole else coordinate(sample),
            measured="gradient 0, while the loss can fall by " + number(sample.measured),
            allowed="a gradient wherever it can fall by more than " + number(_fall(trace, sample)),
            why=f"perhaps a clamp of the {'loss' if whole else 'input'}: behind it nothing changes",
            event=sample,
        )


@invariant("loss", probe="line", per="device")
def gradient_is_continuous(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The loss is a continuous function of its inputs, without jumps.

    Judges: lines parallel to the axes, halved in float64 until the jump sits between neighbours.
    Allows: 1e-3 * (1 + |loss|), and ten times what the loss moves on either side of the place.
        Kinks are allowed: |x| and max(x, 0) have them on purpose.
    Misses: jumps so narrow that no line met them; branches that meet in value but not in slope.
    Why: branches of torch.where that do not meet make the loss jump where no gradient says so.
    Source: openai/pixel-cnn, pixel_cnn_pp/nn.py: nested tf.where conditions.
    """
    for sample in of(trace, "jump"):
        allowed = 1e-3 * (1 + abs(sample.reference)) + 10 * sample.scale
        allowed = trace.limit("gradient_is_continuous", allowed)
        if sample.measured > allowed:
            yield Finding(
                f"`{trace.subject}` jumps between two neighbouring numbers",
                at=coordinate(sample),
                measured="a jump of " + number(sample.measured),
                allowed="at most " + number(allowed),
                why="perhaps two branches of torch.where that do not meet, or a rounding",
                event=sample,
            )


@invariant("loss", probe="difference", per="device")
def gradient_matches_finite_difference(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The gradient from autograd agrees with a central finite difference.

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
    for sample in of(trace, "difference"):
        tolerance = trace.limit("gradient_matches_finite_difference", 1e-4)
        allowed = tolerance * max(1.0, abs(sample.reference)) + sample.scale
        if abs(sample.measured - sample.reference) > allowed:
            custom = sample.label == "custom"
            yield Finding(
                f"the gradient of `{trace.subject}` is not the slope of its value",
                at=coordinate(sample),
                measured=number(sample.measured) + " from autograd",
                allowed=number(sample.reference) + f" within {number(allowed)}, from a difference",
                why=(
                    "perhaps the backward of a custom autograd.Function"
                    if custom
                    else "perhaps a detach or .item() in a factor; it may be meant"
                ),
                rank=Rank.BROKEN if custom else Rank.NOTE,
                event=sample,
            )


def _fall(trace: Trace[Sample], sample: Sample) -> float:
    """Return the fall of the loss, in its own units, below which a zero gradient is no loss."""
    return trace.limit("gradient_is_alive", 1e-3) * (1 + abs(sample.reference))
