"""
The probe of low precision.

"precision": how far the outputs under autocast are from those in float32, in norm relative to the
float32 ones; `reference` is how far float32 is from float64 by the same measure, and `scale` how
far the outputs move where all parameters and inputs are rounded to the low precision and nothing
else. In evaluation mode, at the worst of a few batches.

"precision fails": 1 where the model cannot be called under autocast; `detail` says why.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase, describe_error
from trainguard.observe.model.rounding import move_parameters, noise, worst

_BATCHES = 2


def observe(network: ModelCase) -> Iterator[Pass]:
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
