"""
The probe of other devices.

"device": how far the outputs on another device (`at`) are from those on this one, in norm relative
to the latter; `reference` is how far float32 is from float64 by the same measure.
"device fails": 1 where the model cannot be called on it; `detail` says why.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase, call_guarded, describe_error
from trainguard.observe.model.rounding import noise, worst
from trainguard.observe.tools.devices import present


def observe(network: ModelCase) -> Iterator[Pass]:
    """Compare the outputs on each other device with those on this one."""
    module, inputs = network.build().eval(), network.draw()
    with torch.no_grad():
        outputs = network.call(module, inputs)
        own = noise(network, module, inputs, outputs)
        for device in present():
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
