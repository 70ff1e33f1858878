"""Find parts of a model that are the same and will stay so: rows of weights, parts of a mixture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Generator, Tensor, nn

from trainguard.core.errors import SubjectError, did_you_mean
from trainguard.events.trace import Pass
from trainguard.observe.model.model_case import ModelCase

_SAME = 1e-5  # of the largest element: rounding, far below what one step moves
_MOST_COLUMNS = 4096
_CORNER = 8
_SHARE = 0.05  # of a parameter's own size
_LEAST = 1e-3  # for a parameter that starts at zero
_STEEPEST = 10.0


@dataclass
class IdenticalParts:
    """
    Looks at a model before its first steps and after them.

    Two rows that are the same and get the same gradient are one row for ever. Rows that are only
    filled alike part at the first step, where a loss tells them apart.

    "twins": a weight all of whose rows had a twin, and have it still though they moved; `count`
        is the number of different rows, `of` that of all.
    "components": a declared part of the outputs or parameters; `count` of `of` components have a
        twin, `measured` is how far apart the nearest two are and `scale` how large they are.
    """

    network: ModelCase
    module: nn.Module
    before: dict[str, Tensor] = field(init=False)
    has_loss: bool = field(init=False)

    def __post_init__(self) -> None:
        """Keep the weights all of whose rows have a twin."""
        self.before = {
            name: parameter.detach().clone()
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and parameter.ndim > 1 and _all_have_twins(parameter)
        }
        self.has_loss = self.looks and self._loses()
        self.components = {} if self.has_loss else self._components(self.module)

    @property
    def looks(self) -> bool:
        """Whether there is anything that steps could part."""
        return bool(self.before or self.network.model.components)

    def find_identical(self, module: nn.Module) -> Iterator[Pass]:
        """Yield what is the same after the steps; without a loss, what was so before them."""
        if self.has_loss:
            self.components = self._components(module)
            yield from self._find_stayed(module)
        for name, (rows, where) in self.components.items():
            yield self._measure(name, rows, where)

    def _loses(self) -> bool:
        """Say whether the steps are made for a loss, and not for a random projection."""
        inputs = self.network.draw()
        outputs = self.network.call(self.module, inputs)
        return self.network.loss(outputs, inputs) is not None

    def _find_stayed(self, module: nn.Module) -> Iterator[Pass]:
        """Yield the weights whose rows moved and did not part."""
        after = dict(module.named_parameters())
        for name, before in self.before.items():
            now = after[name].detach()
            moved = (now - before).flatten(1).abs().amax(1) > 0
            if bool(moved.all()) and _all_have_twins(now):
                yield self.network.make_event(
                    "twins", place=name, count=len(_distinct(now)), of=len(now)
                )

    def _components(self, module: nn.Module) -> dict[str, tuple[Tensor, str]]:
        """Return the declared components as rows, from the outputs and the parameters."""
        if not self.network.model.components:
            return {}
        outputs = self.network.call(module, self.network.draw()).tensors
        parameters = dict(module.named_parameters())
        found = {}
        for name, axis in self.network.model.components.items():
            if name in outputs:
                found[name] = (_rows(outputs[name], -1 if axis is None else axis), "output")
                continue
            own = [other for other in parameters if fnmatchcase(other, name)]
            if not own:
                raise SubjectError(
                    f"its components name {name!r}, which is no output and no parameter",
                    did_you_mean(name, [*outputs, *parameters]).strip().rstrip("."),
                )
            for other in own:
                found[other] = (_rows(parameters[other].detach(), axis or 0), "parameter")
        return found

    def _measure(self, name: str, rows: Tensor, where: str) -> Pass:
        """Measure how far apart the components of one part are."""
        scale = float(rows.abs().max()) if rows.numel() else 0.0
        apart = torch.cdist(rows.double(), rows.double(), p=torch.inf)
        apart.fill_diagonal_(torch.inf)
        nearest = apart.amin(1) if len(rows) > 1 else torch.full((len(rows),), torch.inf)
        twins = nearest <= _SAME * scale
        first = int(nearest.argmin())
        other = int(apart[first].argmin()) if len(rows) > 1 else first
        return self.network.make_event(
            "components",
            place=name,
            at=f"components {min(first, other)} and {max(first, other)}",
            measured=float(nearest.min()),
            scale=scale,
            count=int(twins.sum()),
            of=len(rows),
            detail=where,
        )


def _rows(tensor: Tensor, axis: int) -> Tensor:
    """Return the slices along one axis as rows, of at most a few thousand columns."""
    if not -tensor.ndim <= axis < tensor.ndim:
        raise SubjectError(
            f"its components are along dimension {axis} of a tensor of {tensor.ndim} dimensions",
            "name a dimension that it has",
        )
    return tensor.detach().movedim(axis, 0).reshape(tensor.shape[axis], -1)[:, :_MOST_COLUMNS]


def _all_have_twins(weight: Tensor) -> bool:
    """Say whether every row of a weight is the same as another one, up to rounding."""
    if len(weight) < 2 or not bool(weight.isfinite().all()):
        return False
    corner = real(weight.detach()).flatten(1)[:, :_CORNER]
    if bool(((corner[1:] - corner[0]).abs().amax(1) > _SAME * weight.abs().max()).all()):
        return False  # the first row has none: this is how nearly every weight is told at once
    sorted_, gap = _order_rows(weight)
    near = sorted_.diff() <= gap
    edge = torch.zeros(1, dtype=torch.bool, device=near.device)
    return bool((torch.cat([edge, near]) | torch.cat([near, edge])).all())


def _distinct(weight: Tensor) -> list[float]:
    """Return one number for each different row of a weight."""
    sorted_, gap = _order_rows(weight)
    starts = torch.cat([torch.ones(1, dtype=torch.bool, device=gap.device), sorted_.diff() > gap])
    return [float(value) for value in sorted_[starts]]


def _order_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a weight on a random line, in order, and the distance of equal ones."""
    rows = real(weight.detach()).flatten(1).double()
    line = torch.randn(rows.shape[1], generator=Generator().manual_seed(0), dtype=torch.float64)
    return (rows @ line.to(rows.device)).sort().values, _SAME * rows.abs().max()


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
