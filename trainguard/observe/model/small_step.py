"""A small step against the gradient, the same for parameters of every size."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_SHARE = 0.05  # of a parameter's own size
_LEAST = 1e-3  # for a parameter that starts at zero
_STEEPEST = 10.0


def step(parameters: Iterable[nn.Parameter]) -> None:
    """
    Move each parameter against its gradient, by a twentieth of its own size.

    The elements of one parameter keep the proportions of their gradients, up to a bound: rows
    that have the same gradient stay alike, and others part.
    """
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is None:
                continue
            own, gradient = real(parameter.data), real(parameter.grad)
            size = _size(gradient)
            if 0 < size < torch.inf:
                reach = max(_SHARE * _size(own), _LEAST)
                own.sub_(reach * (gradient / size).clamp(-_STEEPEST, _STEEPEST))


def real(tensor: Tensor) -> Tensor:
    """Return a dense view of a tensor in which a complex number is two real ones."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _size(tensor: Tensor) -> float:
    """Return the root mean square of a tensor; nan or infinity where an element is none."""
    return float(tensor.norm() / max(tensor.numel(), 1) ** 0.5)
