"""
The probe of `torch.compile`.

"compiled": how far an output, or the gradient of the objective with respect to all parameters
    (`place`), of the compiled model is from the eager one's, in norm relative to the latter, in
    evaluation mode; `reference` is how far float32 is from float64 by the same measure.
"compiling fails": 1 where the compiled model cannot be called; `detail` says why.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import error
from trainguard.observe.model.model_case import ModelCase, call_guarded, describe_error
from trainguard.observe.model.outputs import Outputs
from trainguard.observe.model.rounding import noise, worst

_BATCHES = 2  # what the first call leaves in the compiled code shows at the second
_NO_COMPILER = ("InvalidCxxCompiler", "TritonMissing", "GPUTooOldForTriton")


def observe(network: ModelCase) -> Iterator[Pass]:
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
