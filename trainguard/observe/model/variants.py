"""
The probes of what must agree: checkpointing, torch.compile, low precision, other devices.

"checkpointed": how far the gradient of a parameter (`place`) with checkpointing is from the one
    without, relative to its own norm, or to a share of the largest one where it is tiny; in
    training mode, from the same seed. It is infinite where only one of the two is there.
"checkpointing fails": 1 where the model cannot be trained with it; `detail` says why.
"saved": how many tensors are kept for backward with it; `reference` without.

"compiled": how far an output, or the gradient of the objective with respect to all parameters
    (`place`), of the compiled model is from the eager one's, in norm relative to the latter, in
    evaluation mode; `reference` is how far float32 is from float64 by the same measure.
"compiling fails": 1 where the compiled model cannot be called; `detail` says why.

"precision": how far the outputs under autocast are from those in float32, in norm relative to the
float32 ones; `reference` is how far float32 is from float64 by the same measure, and `scale` how
far the outputs move where all parameters and inputs are rounded to the low precision and nothing
else. In evaluation mode, at the worst of a few batches.

"precision fails": 1 where the model cannot be called under autocast; `detail` says why.

"device": how far the outputs on another device (`at`) are from those on this one, in norm relative
to the latter; `reference` is how far float32 is from float64 by the same measure, or noise of
that size in what each of its modules returns: a choice between equals is another one then.
"device fails": 1 where the model cannot be called on it; `detail` says why.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import error, move_parameters, noise, scatter, worst
from trainguard.observe.model.model_case import ModelCase, call_guarded, describe_error
from trainguard.observe.model.outputs import Outputs
from trainguard.observe.tools.devices import compared

_TINY = 1e-3  # of the largest norm of a gradient: below it, rounding is all there is
_NOISE = 1e-5
Gradients = dict[str, Tensor | None]
_BATCHES = 2  # what the first call leaves in the compiled code shows at the second
_NO_COMPILER = ("InvalidCxxCompiler", "TritonMissing", "GPUTooOldForTriton")


def observe_checkpointing(network: ModelCase) -> Iterator[Pass]:
    """Compare the gradients of one training step with and without checkpointing."""
    if network.model.checkpoint is None:
        return
    plain, kept = _train(network, network.build())
    try:
        switched, fewer = _train(network, _switch_on(network))
    except SubjectError as fault:
        why = describe_error(fault.__cause__ or fault)
        yield network.make_event("checkpointing fails", measured=1.0, detail=why)
        return
    yield network.make_event("saved", measured=float(fewer), reference=float(kept))
    gaps = _gaps(plain, switched)
    if any(gap > _NOISE for gap in gaps.values()):
        again, _ = _train(network, network.build())
        if any(gap > _NOISE for gap in _gaps(plain, again).values()):
            raise Unjudged("two steps from the same seed differ by themselves")
    for name, gap in gaps.items():
        yield network.make_event("checkpointed", place=name, measured=gap)


def _switch_on(network: ModelCase) -> nn.Module:
    """Build the model and switch checkpointing on."""
    module = network.build()
    assert network.model.checkpoint is not None
    returned = call_guarded(network.model.checkpoint, module)
    return returned if isinstance(returned, nn.Module) else module


def _train(network: ModelCase, module: nn.Module) -> tuple[Gradients, int]:
    """Go forward and back once; return the gradients, and how many tensors were kept for it."""
    inputs, kept = network.draw(), list[int]()

    def keep(tensor: Tensor) -> Tensor:
        """Count a tensor that is kept for backward."""
        kept.append(tensor.numel())
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        objective = network.objective(network.call(module.train(), inputs), inputs)
        count = len(kept)
        call_guarded(objective.backward)
    return {name: p.grad for name, p in module.named_parameters()}, count


def _gaps(plain: Gradients, other: Gradients) -> dict[str, float]:
    """Return for each parameter how far two gradients are apart; wrappers may rename it."""
    largest = max((float(g.norm()) for g in plain.values() if g is not None), default=0.0)
    pairs = zip(plain.items(), other.values(), strict=False)
    return {name: _gap(one, two, _TINY * largest) for (name, one), two in pairs}


def _gap(one: Tensor | None, two: Tensor | None, least: float) -> float:
    """Return how far two gradients are apart, relative to the first one's norm."""
    if one is None or two is None:
        absent = (one is None, two is None)
        there = one if two is None else two
        return 0.0 if all(absent) or there is None or not bool(there.any()) else inf
    gap, size = float((one - two).norm()), max(float(one.norm()), least)
    return gap / size if size else gap


def observe_compiled(network: ModelCase) -> Iterator[Pass]:
    """Compare the compiled model with the eager one; once, since compiling takes seconds."""
    if network.case:
        return
    eager = network.build().eval()
    own = _noise(network, eager)
    try:
        yield from _compare(network, eager, own)
    except SubjectError as fault:
        why = describe_error(fault.__cause__ or fault)
        if any(word in why for word in _NO_COMPILER):
            raise Unjudged(f"nothing can be compiled here: {why}") from fault
        yield network.make_event("compiling fails", measured=1.0, detail=why)
    finally:
        torch.compiler.reset()


def _noise(network: ModelCase, eager: nn.Module) -> float:
    """Return the rounding noise of the eager model; it must give the same outputs twice."""
    inputs = network.draw()
    with torch.no_grad():
        outputs = network.call(eager, inputs)
        if worst(network.call(eager, inputs), outputs)[1]:
            raise Unjudged("its outputs are not the same twice, so they cannot be compared")
        return noise(network, eager, inputs, outputs)


def _compare(network: ModelCase, eager: nn.Module, own: float) -> Iterator[Pass]:
    """Yield how far the compiled model is from the eager one."""
    compiled = call_guarded(torch.compile, network.build().eval())
    found: dict[str, float] = {}
    for seed in range(_BATCHES):
        there = _outputs_and_gradient(network, compiled, seed)
        here = _outputs_and_gradient(network, eager, seed)
        place, gap = worst(there[0], here[0])
        found[place] = max(gap, found.get(place, 0.0))
        found["the gradient"] = max(error(there[1], here[1]), found.get("the gradient", 0.0))
    for place, gap in found.items():
        yield network.make_event("compiled", place=place, measured=gap, reference=own)


def _outputs_and_gradient(
    network: ModelCase, module: nn.Module, seed: int
) -> tuple[Outputs, Tensor]:
    """Return the outputs of one batch, and the gradient of the objective in one row."""
    module.zero_grad(set_to_none=True)
    inputs = network.draw(seed)
    outputs = network.call(module, inputs)
    call_guarded(network.objective(outputs, inputs).backward)
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return outputs, torch.cat([*gradients, torch.zeros(0, device=network.device)])


def observe_precision(network: ModelCase) -> Iterator[Pass]:
    """Compare the outputs under autocast with those in float32."""
    module = network.build().eval()
    found, own, rounding = [], 0.0, 0.0
    low = getattr(torch, network.precision)
    rounded = move_parameters(network, module, lambda parameter: parameter.to(low).to(parameter))
    with torch.no_grad():
        for seed in range(_BATCHES):
            inputs = network.draw(seed)
            outputs = network.call(module, inputs)
            if seed == 0:
                if worst(network.call(module, inputs), outputs)[1]:
                    raise Unjudged("its outputs are not the same twice, so they cannot be compared")
                own = noise(network, module, inputs, outputs)
            try:
                coarse = network.call(module, inputs, autocast=network.precision)
            except SubjectError as fault:
                why = describe_error(fault.__cause__ or fault)
                yield network.make_event("precision fails", measured=1.0, detail=why)
                return
            found.append(worst(coarse, outputs))
            given = {name: _round(value, low) for name, value in inputs.items()}
            rounding = max(rounding, worst(network.call(rounded, given), outputs)[1])
    place, measured = max(found, key=lambda pair: pair[1])
    yield network.make_event(
        "precision", place=place, measured=measured, reference=own, scale=rounding
    )


def _round(value: Any, low: torch.dtype) -> Any:
    """Return an input rounded to a low precision, where it is a tensor of floats."""
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(low).to(value) if floats else value


def observe_devices(network: ModelCase) -> Iterator[Pass]:
    """Compare the outputs on each other device with those on this one."""
    module, inputs = network.build().eval(), network.draw()
    with torch.no_grad():
        outputs = network.call(module, inputs)
        if worst(network.call(module, inputs, seed=1), outputs)[1]:
            raise Unjudged("it draws random numbers, which are others on each device")
        own = noise(network, module, inputs, outputs)
        own = max(own, scatter(network, module, inputs, outputs))
        for device in compared():
            if device == network.device:
                continue
            there = replace(network, device=device)
            try:
                moved = there.call(call_guarded(module.to, device), _move(inputs, device))
            except SubjectError as fault:
                why = describe_error(fault.__cause__ or fault)
                yield network.make_event("device fails", at=device, measured=1.0, detail=why)
                continue
            place, gap = worst(moved, outputs)
            yield network.make_event("device", place=place, at=device, measured=gap, reference=own)


def _move(inputs: dict[str, Any], device: str) -> dict[str, Any]:
    """Return inputs on another device."""
    return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in inputs.items()}
