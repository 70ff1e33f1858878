"""Compare what two calls of a model returned, with each other and with the noise of rounding."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Generator, Tensor, nn

from trainguard.core.errors import SubjectError
from trainguard.observe.model.frozen_copy import twin
from trainguard.observe.model.model_case import Inputs, ModelCase, hookable
from trainguard.observe.model.outputs import Outputs

_EPS = 2.0**-24
_DIGITS = 2.0**-21  # what float32 loses in a few operations
_SCATTERED = 3  # times: a choice between two equals is the same one in half of them


def differences(one: Outputs, other: Outputs) -> dict[str, float]:
    """Return for each output how far two calls are apart, relative to its largest value."""
    names = dict.fromkeys([*one.tensors, *other.tensors])
    return {name: apart(one.tensors.get(name), other.tensors.get(name)) for name in names}


def largest(one: Outputs, other: Outputs) -> tuple[str, float]:
    """Return the output at which two calls are farthest apart, and how far they are."""
    each = differences(one, other)
    return max(each.items(), key=lambda pair: pair[1])


def apart(one: Tensor | None, other: Tensor | None, where: Tensor | None = None) -> float:
    """
    Return the largest difference of two tensors relative to their largest value.

    It is infinite where they are not alike: another shape, or other elements that are not finite.
    where: a mask of the elements that are compared; all where None.
    """
    if one is None or other is None or one.shape != other.shape:
        return inf
    if one.dtype == other.dtype and torch.equal(one, other):
        return 0.0
    a, b = _numbers(one), _numbers(other)
    compared = torch.ones_like(a, dtype=torch.bool) if where is None else where
    finite = a.isfinite() & b.isfinite()
    alike = finite | (a == b) | (a.isnan() & b.isnan())
    if not bool(alike[compared].all()):
        return inf
    a, b = torch.where(finite, a, 0.0), torch.where(finite, b, 0.0)
    size = max(_most(a), _most(b))
    return _most((a - b)[compared]) / size if size else 0.0


def error(tensor: Tensor, exact: Tensor) -> float:
    """Return the norm of what a tensor is off, relative to the norm of the exact one's numbers."""
    if tensor.shape != exact.shape:
        return inf
    a, b = _numbers(tensor), _numbers(exact)
    gap = float(torch.where(a == b, 0.0, a - b).norm())  # infinities that both have are equal
    size = float(b[b.isfinite()].norm())
    if gap == 0.0:
        return 0.0
    return gap / size if size and gap == gap else inf


def _numbers(tensor: Tensor) -> Tensor:
    """Return the values of a tensor of any kind in float64; a complex number has two."""
    plain = tensor.detach().cpu()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    return (
        torch.view_as_real(plain.resolve_conj()).double() if plain.is_complex() else plain.double()
    )


def _most(tensor: Tensor) -> float:
    """Return the largest absolute value of a tensor; 0 of an empty one."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


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


def scatter(network: ModelCase, module: nn.Module, inputs: Inputs, outputs: Outputs) -> float:
    """Return how far outputs move, in norm, where each module's own move by about a last digit."""
    moved, generator = 0.0, Generator().manual_seed(0)

    def move(_: nn.Module, __: object, output: Any) -> Any:
        """Return a tensor with a little noise, also where it is zero; all else as it is."""
        plain = isinstance(output, Tensor) and output.layout is torch.strided
        if not plain or output.is_nested or not output.is_floating_point():
            return output
        normal = torch.randn(output.shape, generator=generator, device="cpu").to(output)
        return output + _DIGITS * (1 + output.abs()) * normal

    hooks = [part.register_forward_hook(move) for part in hookable(module).values()]
    try:
        for _ in range(_SCATTERED):
            moved = max(moved, worst(network.call(module, inputs), outputs)[1])
    finally:
        for hook in hooks:
            hook.remove()
    return moved


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
