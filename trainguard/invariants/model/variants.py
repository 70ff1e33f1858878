"""Judgements of a model made or run in another way: the numbers must stay what they were."""

from collections.abc import Iterator
from math import isinf

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Measure, integer
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, sizes, worst
from trainguard.invariants.wording import number, of

EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
_GRADIENT = 1e-4
_FACTOR = 8.0  # of the noise: kernels and precisions round in other places, not only in others


@invariant("model", probe="checkpointing", needs=("checkpoint",))
def checkpointing_keeps_gradients(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Activation checkpointing changes no gradient.

    Judges: the gradient of every parameter after one step in training mode, dropout included, with
        and without `checkpoint(model)`, from the same seed.
    Allows: a difference of 1e-4 of the gradient's norm (limit), or of a thousandth of the largest
        norm where it is below that. Where nothing is saved less than before, it is a note.
    Misses: statistics of batch norm, which are updated twice; what is recomputed wrongly only under
        autocast or on several devices.
    Why: dropout that is drawn anew in the recomputation, or a reentrant checkpoint whose inputs
        need no gradient, trains on gradients of another function, or not at all.
    Source: PyTorch, torch.utils.checkpoint (preserve_rng_state).
    """
    yield from _without_checkpointing_only(trace)
    yield from _other_gradients(trace)
    yield from _nothing_saved(trace)


def _without_checkpointing_only(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding where a step fails with checkpointing."""
    for seen in list(of(trace, "checkpointing fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be trained with checkpointing",
            sizes(seen),
            seen.detail,
            "one step, as without checkpointing",
            why="perhaps a reentrant checkpoint whose inputs need no gradient: use_reentrant=False",
            event=seen,
        )


def _other_gradients(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for the gradient that checkpointing changes most."""
    limit = trace.limit("checkpointing_keeps_gradients", _GRADIENT)
    broken = [seen for seen in of(trace, "checkpointed") if not seen.measured <= limit]
    found = sorted(worst(broken, lambda seen: seen.measured), key=lambda seen: -seen.measured)
    for seen in found[:1]:
        yield Finding(
            f"a gradient of `{trace.subject}` is another one with checkpointing",
            f"{format_place(seen)}, {sizes(seen)}",
            "a gradient on one side only"
            if isinf(seen.measured)
            else "differs by " + number(seen.measured) + " of its norm",
            "differs by " + number(limit) + " of its norm",
            why="perhaps preserve_rng_state=False with dropout, or use_reentrant=True with inputs"
            " that need no gradient",
            event=seen,
            elsewhere=(f"{len(found) - 1} more",) if len(found) > 1 else (),
        )


def _nothing_saved(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a note where as much is kept for backward as without checkpointing."""
    for seen in list(of(trace, "saved"))[:1]:
        if seen.measured >= seen.reference:
            yield note(
                f"checkpointing saves nothing in `{trace.subject}`",
                sizes(seen),
                integer(seen.measured, "tensors") + " kept for backward",
                "fewer than " + integer(seen.reference, "tensors") + " kept for backward",
                why="perhaps the switch is not read, or not in this mode",
                event=seen,
            )


@invariant("model", probe="compiled", needs=("compiled",))
def compiled_agrees_with_eager(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The compiled model agrees with the eager one in outputs and gradients.

    Judges: outputs and the gradient of all parameters for two batches, in evaluation mode.
    Allows: 8 times the rounding noise of the model, which is how far float32 is from float64, and
        at least 1e-4 (limit), relative to the norm of the eager one.
    Misses: training mode, whose random numbers are others when compiled; other sizes.
    Why: what runs in Python at the first call only, and code that asks whether it is compiled, make
        another model of it.
    Source: PyTorch, torch.compile troubleshooting (accuracy).
    """
    for seen in list(of(trace, "compiling fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be called when it is compiled",
            sizes(seen),
            seen.detail,
            "a call, as without compiling",
            event=seen,
        )
    least = trace.limit("compiled_agrees_with_eager", _GRADIENT)
    yield from _noisier(
        trace,
        list(of(trace, "compiled")),
        least,
        "`{}` computes something else when it is compiled",
        "perhaps a branch on torch.compiler.is_compiling, or Python state that is frozen in",
    )


@invariant("model", probe="precision", per="low precision")
def low_precision_agrees(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The outputs of the model under autocast agree with those in float32.

    Judges: the outputs in evaluation mode, in norm relative to the float32 ones.
    Allows: 8 times the rounding noise of the model, which is how far float32 is from float64,
        scaled from float32's epsilon to the low one's, or 4 times what rounding its parameters and
        inputs does; at least 16 epsilons (limit; bfloat16: 0.125, float16: 0.0156), and at most
        four times that.
    Misses: gradients that underflow in float16; errors that build up in training.
    Why: positions, counts and differences that are taken in the type of the input are exact in
        float32, and off by whole steps where three digits are left.
    Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740).
    """
    dtype = str(trace.conditions.get("dtype"))
    for seen in list(of(trace, "precision fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be called under autocast to {dtype}",
            sizes(seen),
            seen.detail,
            "a call, as in float32",
            why="perhaps a constant beyond the range of the type, or an operation on two types",
            event=seen,
        )
    eps = EPS.get(dtype, 1.0)
    least = trace.limit("low_precision_agrees", 16 * eps)
    for seen in worst(of(trace, "precision"), lambda seen: seen.measured)[:1]:
        noise = max(_FACTOR * seen.reference * eps / EPS["float32"], 4 * seen.scale)
        allowed = min(max(least, noise), 4 * least)
        if not seen.measured <= allowed:
            yield Finding(
                f"the {dtype} outputs of `{trace.subject}` are far from the float32 ones",
                f"{format_place(seen)}, {sizes(seen)}",
                _relative(seen.measured),
                "relative error " + number(allowed),
                why="perhaps positions, counts or differences in the low precision, or numbers"
                " that overflow in it; compute them in float32",
                event=seen,
            )


@invariant("model", probe="devices", needs=("devices",))
def devices_agree(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Every device computes the same outputs.

    Judges: the outputs in evaluation mode on each other device, in norm relative to the cpu's.
    Allows: 8 times the rounding noise of the model, which is how far float32 is from float64, or
        what noise of that size does in its modules' outputs (a choice between equals is another
        one), and at least 1e-2 (limit): convolutions may use matrix units of ten bits.
    Misses: differences below that; devices that are not in this machine; models that draw random
        numbers in evaluation mode, which are others on each device.
    Why: a tensor that is no buffer stays where it was, and fused kernels round differently or are
        wrong.
    Source: PyTorch's notes on numerical accuracy, and on TensorFloat-32.
    """
    for seen in list(of(trace, "device fails"))[:1]:
        yield Finding(
            f"`{trace.subject}` cannot be called on another device",
            f"{seen.at}, {sizes(seen)}",
            seen.detail,
            "a call, as on the cpu",
            why="perhaps a tensor that is no buffer, or that is made without device=",
            event=seen,
        )
    least = trace.limit("devices_agree", 1e-2)
    yield from _noisier(
        trace,
        list(of(trace, "device")),
        least,
        "the outputs of `{}` are others on another device",
        "",
    )


def _noisier(
    trace: Trace[Pass], passes: list[Pass], least: float, summary: str, why: str
) -> Iterator[Finding]:
    """Yield a finding for what is off by more than the noise of the model."""
    for seen in sorted(passes, key=lambda seen: -seen.measured)[:1]:
        allowed = max(least, _FACTOR * seen.reference)
        if not seen.measured <= allowed:
            at = ", ".join(part for part in (format_place(seen), seen.at, sizes(seen)) if part)
            yield Finding(
                summary.format(trace.subject),
                at,
                _relative(seen.measured),
                "relative error " + number(allowed),
                why=why,
                event=seen,
            )


def _relative(measured: float) -> Measure:
    """Write a relative error, which is infinite where something is not finite."""
    if isinf(measured):
        return Measure("not finite", measured)
    return "relative error " + number(measured)
