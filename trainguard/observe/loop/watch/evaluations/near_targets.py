"""
Finds what the output of an evaluation pass is to be, in the variables of who asked for it.

A loader of torch tells what belongs to an input; a script that takes rows of tensors does not. But
its targets are mostly there when the model is called: beside the input in the variables of the
caller, or as a table of which the input's table has as many rows.
"""

from collections.abc import Iterator
from types import CodeType
from typing import Any, Protocol

import torch

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.tools.local_values import has_rows, start_of, storage_of
from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 3  # of the user's code whose variables are looked at
_PATIENCE = 8  # passes of a module without any
_MODULES = 8
_LARGEST = 2**22  # elements of scores
_OUTPUTS = 3  # of a pass
_LEAST = 4  # rows of numbers: fewer may be anything
Pair = tuple[torch.Tensor, torch.Tensor]


class TargetFit(Protocol):
    """Says what is compared, of scores and something beside the input; None if it is no target."""

    def __call__(self, scores: torch.Tensor, target: torch.Tensor, *, known: bool) -> Pair | None:
        """Return both; known: it is the one variable that fitted before."""


class NearTargets:
    """
    What was learned of where the targets stand of each module that was evaluated.

    Once a variable is known to be the only one that fits, it is the one that is asked from then on:
    later ones may hold what was predicted before.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[CodeType, str]] = {}
        self._tries: dict[str, int] = {}

    def find(
        self, module: str, inputs: tuple[Any, ...], output: Any, fit: TargetFit
    ) -> Pair | None:
        """Return scores and what they are to be, the one pair that fits; None if unknown."""
        outputs = [t for t in tensors_in(output) if t.is_floating_point() and t.dim()]
        outputs = [t for t in outputs if 0 < t.numel() <= _LARGEST][:_OUTPUTS]
        if not outputs or not self._goes_on(module):
            return None
        given = [tensor for tensor in tensors_in(inputs) if tensor.dim() and has_rows(tensor)]
        for frame in user_frames(_FRAMES):
            known = self._places.get(module)
            if known is not None and known[0] is not frame.f_code:
                continue
            own = variables_of(frame)
            named = {known[1]: own.get(known[1])} if known is not None else own
            found = [
                (name, pair)
                for name, value in named.items()
                for target in _targets_in(value, given)
                for scores in outputs
                if (pair := fit(scores, target, known=known is not None)) is not None
            ]
            if found and all(torch.equal(found[0][1][1], other[1]) for _, other in found[1:]):
                self._places[module] = frame.f_code, found[0][0]
                return found[0][1]
            if found or known is not None:
                return None
        return None

    def _goes_on(self, module: str) -> bool:
        """Say whether it is worth while to look for the targets of a module."""
        if module in self._places:
            return True
        self._tries[module] = self._tries.get(module, 0) + 1
        return self._tries[module] <= _PATIENCE and len(self._tries) <= _MODULES


def _targets_in(value: Any, given: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield what may be targets in a variable: beside inputs, or the same rows of a whole table."""
    places = {storage_of(tensor) for tensor in given[:1]}  # a batch may be given as a whole
    places |= {storage_of(tensor) for tensor in given if tensor.is_floating_point()}
    for tensor in [value] if isinstance(value, torch.Tensor) else _entries_of(value):
        if tensor.is_complex() or not tensor.dim() or tensor.requires_grad:
            continue
        if storage_of(tensor) in places or not given or not has_rows(tensor):
            continue
        base, rows = given[0]._base, len(given[0])  # noqa: SLF001
        if base is not None and base.dim() == given[0].dim() and len(tensor) == len(base) > rows:
            first = (start_of(given[0]) - start_of(base)) // max(1, _row_bytes(base))
            yield tensor[first : first + rows]
        else:
            yield tensor


def _entries_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a batch: a list, a tuple or a dict of a few."""
    if type(value) is dict:
        value = list(value.values())
    few = type(value) in {list, tuple} and len(value) <= 16
    return [entry for entry in value if isinstance(entry, torch.Tensor)] if few else []


def _row_bytes(table: torch.Tensor) -> int:
    """Return how far apart two rows of a table lie in memory."""
    return int(table.stride(0)) * table.element_size()


def fit_classes(
    scores: torch.Tensor, target: torch.Tensor, *, known: bool, ignored: int
) -> Pair | None:
    """Return scores and targets as a loss takes them, where these are classes of those."""
    if scores.dim() < 2:
        return None
    shapes = [scores.shape[:1] + scores.shape[2:], scores.shape[:-1]]
    fitting = [target.shape == shape for shape in shapes]
    if not any(fitting) or target.is_floating_point() or target.dtype is torch.bool:
        return None
    axis = 1 if fitting[0] else -1
    if target.device != scores.device or scores.shape[axis] < 2:
        return None
    pair = scores.detach().movedim(axis, 1), target
    if known and not scores.is_cpu:  # it was looked at once, and would be waited for each time
        return pair
    kept = target[target != ignored]
    if not kept.numel():
        return None
    inside = int(kept.min()) >= 0 and int(kept.max()) < scores.shape[axis]
    return pair if inside else None


def fit_numbers(scores: torch.Tensor, target: torch.Tensor, *, known: bool) -> Pair | None:
    """Return scores and targets, where there is one of these for each of those, and they differ."""
    if target.squeeze(-1).shape != scores.squeeze(-1).shape:
        return None
    if target.device != scores.device or len(target) < _LEAST:
        return None
    if known or bool((target != target.flatten()[0]).any()):
        return scores.detach(), target
    return None


def fit_decisions(scores: torch.Tensor, target: torch.Tensor, *, known: bool) -> Pair | None:
    """Return scores and targets of one shape, where these are zeros and ones, and both come."""
    pair = fit_numbers(scores, target, known=known)
    if pair is None or not bool(((target == 0) | (target == 1)).all()):
        return None
    return scores.detach().squeeze(-1), target.squeeze(-1)
