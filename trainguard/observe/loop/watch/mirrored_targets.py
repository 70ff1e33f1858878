"""Targets that lie over their input place by place: whether one input comes with mirrored ones."""

from dataclasses import dataclass, field

import torch

from trainguard.observe.loop.watch.labels import hash_rows

_SIDE = 8  # places along each side of a target: smaller ones may be equal by chance
_ROWS, _NUMBERS = 4096, 2**24  # of targets, whose mirror images are hashed
_MIRRORS = ((-1,), (-2,), (-2, -1))  # left and right, up and down, both
_LEAST = 16  # inputs that must have come again
_SHARE = 0.1  # of them, with a mirrored target: two pictures may be equal in a few places


@dataclass(slots=True)
class MirroredTargets:
    """
    Whether inputs that come again have the targets that they had.

    first: the target of each input, and its mirror images. again, mirrored: how many inputs have
    come again, and with how many a target did that is the mirror image of their first.
    """

    first: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    again: int = 0
    mirrored: int = 0
    rows: int = 0
    numbers: int = 0

    def add(self, given: torch.Tensor, target: torch.Tensor, rows: list[int]) -> None:
        """Take in a batch: what a module was given, its targets, and a number for each input."""
        is_over = given.dim() > 3 and target.dim() > 2 and given.shape[-2:] == target.shape[-2:]
        if not is_over or min(target.shape[-2:]) < _SIDE or not self._has_room(target):
            return
        own = _numbers_of(target)
        turned = [_numbers_of(target.flip(sides)) for sides in _MIRRORS]
        images = [set(each) for each in zip(*turned, strict=True)]
        for row, number, mirrored in zip(rows, own, images, strict=True):
            if row not in self.first:
                self.first[row] = number, mirrored
                continue
            before, before_mirrored = self.first[row]
            self.again += 1
            self.mirrored += number != before and number in before_mirrored

    @property
    def is_apart(self) -> bool:
        """Whether inputs and targets are mirrored each by itself."""
        return self.again >= _LEAST and self.mirrored >= _SHARE * self.again

    def _has_room(self, target: torch.Tensor) -> bool:
        """Say whether more is to be hashed, and count it."""
        self.rows += len(target)
        self.numbers += target.numel()
        return self.rows <= _ROWS and self.numbers <= _NUMBERS


def _numbers_of(target: torch.Tensor) -> list[int]:
    """Return a number for each row of a target."""
    return hash_rows(target.reshape(len(target), -1).double())
