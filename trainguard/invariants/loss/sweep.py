"""The invariants of the sweep: finite values, finite and bounded gradients."""

from collections.abc import Iterator
from math import isfinite, isnan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Sample, Trace
from trainguard.invariants.wording import coordinate, number, of, share


@invariant("loss")
def value_is_finite(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    The loss is a finite number.

    Judges: the loss at every swept point of the declared ranges.
    Allows: no nan and no infinity.
    Misses: points inside the ranges that the sweep did not meet.
    Why: one nan in a batch makes every parameter nan in one step.
    Source: PyTorch, torch.nn.BCEWithLogitsLoss (stable where a sigmoid and a BCELoss are not).
    """
    for sample in of(trace, "value"):
        if not isfinite(sample.measured):
            yield Finding(
                f"the value of `{trace.subject}` is not finite",
                measured=number(sample.measured) + f"  {share(sample)}",
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
    Source: pytorch/pytorch issue 10729.
    """
    for sample in of(trace, "gradient"):
        if not isfinite(sample.measured):
            nan = isnan(sample.measured)
            yield Finding(
                f"the gradient of `{trace.subject}` is not finite",
                at=coordinate(sample),
                measured=number(sample.measured) + f"  {share(sample)}",
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
    Source: PyTorch, torch.nn.BCELoss (its logarithms are clamped, since their gradients are
        infinite at 0).
    """
    for sample in of(trace, "largest_gradient"):
        allowed = trace.limit(
            "gradient_is_bounded", 1e4 * max(1.0, trace.promise(f"magnitude:{sample.input}") or 1.0)
        )
        if sample.measured > allowed:
            yield Finding(
                f"the gradient of `{trace.subject}` explodes",
                at=coordinate(sample),
                measured=number(sample.measured),
                allowed="at most " + number(allowed),
                why="at a vector of zeros, which has no direction: a division by its norm has a"
                " slope of 1 / eps there; a larger eps, or a norm of sqrt(x.x + eps), bounds it"
                if sample.at_zeros
                else "perhaps an exp without a clamp, or a division by something that can be tiny",
                event=sample,
            )
