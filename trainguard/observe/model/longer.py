"""
The probe of inputs longer than those trained with.

"longer fails": 1 where the model cannot be called with them; `detail` says why.
"longer shape": 1 for an output that has not the shape that it should have; `detail`.
"longer": how many elements of an output are not finite, `of` how many.
"""

from collections.abc import Iterator

import torch

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Pass
from trainguard.observe.model.frozen_copy import FrozenCopy
from trainguard.observe.model.model_case import ModelCase, describe_error
from trainguard.observe.model.output_axes import layouts
from trainguard.observe.model.outputs import Outputs


def observe(network: ModelCase) -> Iterator[Pass]:
    """Call the model with the longer inputs that are promised, in evaluation mode."""
    if network.case:
        return
    promised = dict(network.model.longer)
    longer = network.with_sizes(**promised)
    at = ", ".join(f"{name} = {size}" for name, size in promised.items())
    try:
        with torch.no_grad():
            outputs = longer.call(longer.build().eval(), longer.draw())
    except SubjectError as fault:
        why = describe_error(fault.__cause__ or fault)
        yield longer.make_event("longer fails", at=at, measured=1.0, detail=why)
        return
    for name, tensor in outputs.tensors.items():
        bad = int((~tensor.isfinite()).sum())
        yield longer.make_event(
            "longer", place=name, at=at, measured=bad, count=bad, of=tensor.numel()
        )
    if len(promised) == 1:
        yield from _shapes(network, longer, outputs, at)


def _shapes(network: ModelCase, longer: ModelCase, outputs: Outputs, at: str) -> Iterator[Pass]:
    """Yield an event for each output that does not follow the length as it otherwise does."""
    ((dimension, size),) = longer.model.longer.items()
    for name, ways in layouts(FrozenCopy.of(network), dimension).items():
        tensor = outputs.tensors.get(name)
        if not ways or tensor is None or ways[0].axis >= tensor.ndim:
            continue
        found = tensor.shape[ways[0].axis]
        expected = ways[0].outer * ways[0].inner * size
        if found != expected:
            detail = f"{found} along axis {ways[0].axis} instead of {expected} along it"
            yield longer.make_event("longer shape", place=name, at=at, measured=1.0, detail=detail)
