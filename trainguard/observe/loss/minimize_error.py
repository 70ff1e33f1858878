"""Look for the simplest call at which a loss fails as it did: the smallest sizes, round numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from trainguard.core.errors import SubjectError
from trainguard.observe.loss.call import Component, check_attached
from trainguard.observe.loss.sampling import draw
from trainguard.observe.loss.shrink import shrink
from trainguard.observe.loss.side_effects import make_copies
from trainguard.observe.tools import call_code
from trainguard.observe.tools.deadline import deadline
from trainguard.observe.tools.points import Box, Points
from trainguard.observe.tools.structure import Structure, smallest
from trainguard.subjects.loss import Loss

_SECONDS = 5.0
_POINTS = 32
_TRIES = 32


def culprit(
    loss: Loss,
    structures: Sequence[Structure],
    device: str,
    dtype: torch.dtype,
    fault: SubjectError,
) -> str:
    """Return the simplest call that fails as `fault` did, or nothing where none is found soon."""
    search = _Search(loss, device, dtype, fault)
    try:
        with deadline(min(_SECONDS, loss.timeout)):
            known = next((s for s in structures if search.failing(s)), None)
            return "" if known is None else search.call(known)
    except SubjectError:  # out of time
        return ""


@dataclass
class _Search:
    """One fault, and calls that may or may not fail in the same way."""

    loss: Loss
    device: str
    dtype: torch.dtype
    fault: SubjectError

    def call(self, known: Structure) -> str:
        """Return the simplest failing call that can be found from a structure that fails."""
        structure = smallest(
            self.loss, lambda s: self.failing(s) is not None, known, _TRIES, seed=0
        )
        point = self.failing(structure)
        assert point is not None, "it fails at this structure"
        point = shrink(self._box(structure), point, lambda many: self._fails(structure, many))
        return call_code.call(self.loss, structure, {name: t[0] for name, t in point.items()})

    def failing(self, structure: Structure) -> Points | None:
        """Return one of a few points at which a call of a structure fails alike."""
        points = draw(self._box(structure), _POINTS, Generator().manual_seed(0))
        for index in range(_POINTS):
            one = {name: t[index : index + 1] for name, t in points.items()}
            if self._fails(structure, one)[0]:
                return one
        return None

    def _box(self, structure: Structure) -> Box:
        """Return the box of a structure's inputs."""
        return Box(self.loss.tensors, structure.sizes, self.dtype, self.device)

    def _fails(self, structure: Structure, points: Points) -> list[bool]:
        """Say for each point whether the call at it fails as the fault did."""
        count = len(next(iter(points.values())))
        return [
            self._alike(structure, {name: t[index] for name, t in points.items()})
            for index in range(count)
        ]

    def _alike(self, structure: Structure, point: Points) -> bool:
        """Say whether one call raises the same kind of exception, or none where there was none."""
        try:
            component = Component(self.loss, structure, self.device, self.dtype)
            check_attached(component.total(make_copies(self.loss, point)))
        except SubjectError as fault:
            return type(fault.__cause__) is type(self.fault.__cause__)
        return False
