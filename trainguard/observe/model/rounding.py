"""The rounding noise of a model: how far its float32 outputs are from its float64 ones."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from trainguard.core.errors import SubjectError
from trainguard.observe.model.comparison import error
from trainguard.observe.model.frozen_copy import twin
from trainguard.observe.model.model_case import Inputs, ModelCase
from trainguard.observe.model.outputs import Outputs

_EPS = 2.0**-24


def noise(network: ModelCase, module: nn.Module, inputs: Inputs, outputs: Outputs) -> float:
    """
    Return the largest relative error of an output of float32, in norm.

    Where the model cannot be in float64, it is what rounding every parameter anew does.
    """
    try:
        exact = network.call(twin(network, module).double(), _as_double(inputs))
    except SubjectError:
        rounded = move_parameters(network, module, _last_digit)
        exact = network.call(rounded, inputs)
    return worst(outputs, exact)[1]


def worst(outputs: Outputs, exact: Outputs) -> tuple[str, float]:
    """Return the output that is farthest off, and by how much, in norm."""
    errors = {
        name: error(tensor, exact.tensors[name])
        for name, tensor in outputs.tensors.items()
        if name in exact.tensors
    }
    return max(errors.items(), key=lambda pair: pair[1])


def _as_double(inputs: Inputs) -> Inputs:
    """Return inputs in float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def move_parameters(
    network: ModelCase, module: nn.Module, change: Callable[[Tensor], Tensor]
) -> nn.Module:
    """Return a copy of which every parameter is changed."""
    other = twin(network, module)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point():
                parameter.copy_(change(parameter))
    return other


def _last_digit(parameter: Tensor) -> Tensor:
    """Return a parameter moved by about its last digit, up or down."""
    generator = Generator().manual_seed(0)
    signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
    return parameter * (1 + _EPS * signs)
