"""Where a named dimension of the inputs stands in the outputs: found by changing its size."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainguard.core.errors import SubjectError
from trainguard.observe.model.frozen_copy import FrozenCopy
from trainguard.subjects.domain import BATCH

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class OutputAxis:
    """
    How an axis of an output holds a dimension: `outer * size * inner`, where `size` is its size.

    A plain axis has an outer and an inner part of 1; samples and positions in one axis do not.
    """

    axis: int
    outer: int
    size: int
    inner: int

    @property
    def plain(self) -> bool:
        """Whether the axis holds this dimension alone."""
        return self.outer == self.inner == 1

    def spread(self, chosen: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a mask of an output's shape from a mask of the positions along the dimension."""
        row = chosen.view(1, -1, 1).expand(self.outer, self.size, self.inner).flatten()
        ones = [1] * len(shape)
        ones[self.axis] = -1
        return row.view(ones).expand(shape)

    def part(self, tensor: Tensor, index: int) -> Tensor:
        """Return what a tensor holds at one position, with the axis as it is for that alone."""
        shape = tensor.shape
        split = (*shape[: self.axis], self.outer, self.size, self.inner, *shape[self.axis + 1 :])
        return tensor.reshape(split).select(self.axis + 1, index).flatten(self.axis, self.axis + 1)


def layouts(specimen: FrozenCopy, dimension: str) -> dict[str, list[OutputAxis] | None]:
    """
    Return for each output the ways in which it may hold a dimension: an empty list if not at all.

    None where that is unclear, or where it holds it twice, as a table of all pairs does.
    """
    shapes = shapes_of(specimen)
    size = specimen.network.sizes[dimension]
    other = _call_resized(specimen, dimension)
    found: dict[str, list[OutputAxis] | None] = {}
    for name, shape in shapes.items():
        if other is None:
            found[name] = _by_place(specimen, dimension, shape)
        elif name in other[1]:
            found[name] = _by_change(shape, size, other[1][name], other[0])
        else:
            found[name] = None
    return found


def shapes_of(specimen: FrozenCopy, **sizes: int) -> Shapes:
    """Return the shapes of the outputs at given sizes, or at the specimen's own."""
    made = specimen.call(specimen.draw(**sizes)) if sizes else specimen.first()
    return {name: tuple(tensor.shape) for name, tensor in made.tensors.items()}


def _call_resized(specimen: FrozenCopy, dimension: str) -> tuple[int, Shapes] | None:
    """Call the model at another size of a dimension that it takes."""
    size = specimen.network.sizes[dimension]
    shorter = 2 if dimension == BATCH else size // 2
    for other in (shorter, size + 1) if dimension == BATCH else (shorter, size - 1):
        if 0 < other != size:
            try:
                return other, shapes_of(specimen, **{dimension: other})
            except SubjectError:  # a length that it is not made for
                continue
    return None


def _by_change(
    shape: tuple[int, ...], size: int, other_shape: tuple[int, ...], other: int
) -> list[OutputAxis] | None:
    """Return the layouts of the one axis that follows the dimension's size; None if unclear."""
    if shape == other_shape:
        return []
    if len(shape) != len(other_shape):
        return None
    pairs = enumerate(zip(shape, other_shape, strict=True))
    axes = [axis for axis, (here, there) in pairs if here != there]
    if len(axes) != 1:
        return None
    (axis,) = axes
    times, rest = divmod(shape[axis], size)
    if rest or times * other != other_shape[axis] or not times:
        return None
    return list(dict.fromkeys([OutputAxis(axis, 1, size, times), OutputAxis(axis, times, size, 1)]))


def _by_place(
    specimen: FrozenCopy, dimension: str, shape: tuple[int, ...]
) -> list[OutputAxis] | None:
    """Return the layout of the axis that stands where every input has the dimension."""
    size, tensors = specimen.network.sizes[dimension], specimen.network.model.tensors.values()
    axes = {d.shape.index(dimension) for d in tensors if d.shape and dimension in d.shape}
    axis = next(iter(axes))
    alone = len(axes) == 1 and axis < len(shape) and shape.count(size) == 1
    return [OutputAxis(axis, 1, size, 1)] if alone and shape[axis] == size else None


def own(specimen: FrozenCopy, dimension: str, chosen: Tensor) -> dict[str, list[Tensor]]:
    """Return masks of some positions of a dimension in each output, one for each of its layouts."""
    shapes = shapes_of(specimen)
    return {
        name: [layout.spread(chosen, shapes[name]) for layout in ways]
        for name, ways in layouts(specimen, dimension).items()
        if ways
    }


def foreign(specimen: FrozenCopy, dimension: str, chosen: Tensor) -> dict[str, Tensor]:
    """Return for each input of `forward` a mask of some positions of a dimension that it has."""
    inputs = specimen.draw()
    return {
        name: along(inputs[name], words.index(dimension), chosen)
        for name, words in entering(specimen).items()
        if words.count(dimension) == 1
    }


def entering(specimen: FrozenCopy) -> dict[str, tuple[str, ...]]:
    """Return the tensors that go into `forward`, with the dimensions of each."""
    given, tensors = specimen.network.forward_names(specimen.module), specimen.network.model.tensors
    return {n: d.shape or () for n, d in tensors.items() if n in given or not given}


def along(tensor: Tensor, axis: int, chosen: Tensor) -> Tensor:
    """Return a mask of a tensor's shape that chooses positions along one of its axes."""
    ones = [1] * tensor.ndim
    ones[axis] = -1
    return chosen.cpu().view(ones).expand(tensor.shape).to(torch.bool)
