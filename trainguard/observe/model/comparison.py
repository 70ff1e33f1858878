"""Compare what two calls of a model returned, output by output."""

from math import inf

import torch
from torch import Tensor

from trainguard.observe.model.outputs import Outputs


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
    """Return the norm of what a tensor is off, relative to the norm of the exact one."""
    if tensor.shape != exact.shape:
        return inf
    a, b = _numbers(tensor), _numbers(exact)
    gap, size = float((a - b).norm()), float(b.norm())
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
