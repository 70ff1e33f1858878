"""The invariants of rounding: low precision, and other devices."""

from collections.abc import Iterator
from math import inf

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.events.trace import Sample, Trace
from trainguard.invariants.wording import number, of

EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@invariant("loss", probe="precision", per="low precision")
def low_precision_agrees(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Gradients in bfloat16 and float16 agree with those in float64.

    Judges: points whose numbers are exact in the low precision.
    Allows: an error of the gradient vector of 16 machine epsilons (bfloat16: 0.125, float16:
        0.0156), relative to its norm, or to the typical norm where its own is below that.
    Misses: errors that only build up over many steps; noise close to the minimum.
    Why: subtracting two nearly equal numbers, or dividing by a small one, makes rounding large, and
        the step follows noise. Computing such a loss in float32 inside costs little.
    Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740).
    """
    for sample in of(trace, "precision"):
        dtype = str(trace.conditions.get("dtype"))
        allowed = trace.limit("low_precision_agrees", 16 * EPS.get(dtype, inf))
        if sample.measured > allowed:
            yield Finding(
                f"the {dtype} gradient of `{trace.subject}` is far from the exact one",
                measured="relative error " + number(sample.measured),
                allowed="at most " + number(allowed),
                why="perhaps a difference of nearly equal numbers; compute it in float32 inside",
                event=sample,
            )


@invariant("loss", probe="devices", needs={"devices"}, per="subject")
def devices_agree(trace: Trace[Sample]) -> Iterator[Finding]:
    """
    Every device computes the same gradient.

    Judges: the gradient vector on each other device against the cpu's.
    Allows: a relative error of 1e-3 of (1 + the gradient's norm), and 8 times what rounding does to
        the gradient: the last bit of the inputs, and float32 instead of float64.
    Misses: differences below that; devices that are not in this machine; losses that draw random
        numbers, which are others on each device.
    Why: fused kernels and reduced-precision matrix units round differently, and some are wrong.
    Source: PyTorch's notes on numerical accuracy.
    """
    for sample in of(trace, "device"):
        allowed = trace.limit("devices_agree", 1e-3)
        if sample.measured > allowed:
            yield Finding(
                f"the gradient of `{trace.subject}` differs between cpu and {sample.label}",
                measured="relative error " + number(sample.measured),
                allowed="at most " + number(allowed),
                event=sample,
            )
