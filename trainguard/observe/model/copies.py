"""
The probe of copies.

"shared": 1 for a trained parameter or a saved buffer (`place`) whose memory a copy shares.
"copy untied": 1 where parameters (`place`) share their memory in a model and not in its copy.
"copied": how far the outputs of a model and of its copy are apart, relative to the largest.
"follows": how far the outputs of a copy move when the parameters of its original do.
"""

import copy
from collections.abc import Iterator

import torch
from torch import nn

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Pass
from trainguard.observe.model.comparison import largest
from trainguard.observe.model.model_case import ModelCase, describe_error
from trainguard.observe.model.state import scramble, tied_groups


def observe(network: ModelCase) -> Iterator[Pass]:
    """Copy a model as an average of its weights would, and see whether the copy is one."""
    if network.case and not network.model.vary:
        return
    model, inputs = network.build().eval(), network.draw()
    first, second, third = (_copy(model) for _ in range(3))
    yield from _memory(network, model, first)
    with torch.no_grad():
        before = network.call(first, inputs)
        if largest(network.call(second, inputs), before)[1]:
            raise Unjudged("two copies of it give different outputs: it is random by itself")
        place, gap = largest(before, network.call(model, inputs))
        yield network.make_event("copied", place=place, measured=gap)
        scramble(model)
        place, gap = largest(network.call(third, inputs), before)
        yield network.make_event("follows", place=place, measured=gap)


def _copy(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise Unjudged(f"it cannot be copied: {describe_error(error)}") from error


def _memory(network: ModelCase, model: nn.Module, twin: nn.Module) -> Iterator[Pass]:
    """Yield what a copy shares with its original, and what it no longer shares within itself."""
    theirs = {
        tensor.untyped_storage().data_ptr() for tensor in _collect_tensors(model).values()
    } - {0}
    for name, tensor in _collect_tensors(twin).items():
        if tensor.untyped_storage().data_ptr() in theirs:
            yield network.make_event("shared", place=name, measured=1.0)
    for names in tied_groups(model) - tied_groups(twin):
        yield network.make_event("copy untied", place=", ".join(names), measured=1.0)


def _collect_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters and the saved buffers of a model."""
    saved = set(model.state_dict())
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {**parameters, **{name: b for name, b in model.named_buffers() if name in saved}}
