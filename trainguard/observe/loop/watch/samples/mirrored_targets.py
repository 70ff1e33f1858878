"""Targets that lie over their input place by place: whether one comes with the other mirrored."""

from dataclasses import dataclass, field

import torch

from trainguard.observe.tools.fingerprint import hash_rows

_SIDE = 8  # places along each side of a target: smaller ones may be equal by chance
_ROWS, _NUMBERS = 4096, 2**24  # of targets, whose mirror images are hashed
_MIRRORS = ((-1,), (-2,), (-2, -1))  # left and right, up and down, both
_SIDES: tuple[tuple[int, ...], ...] = ((), *_MIRRORS)
_LEAST = 16  # inputs that must have come again
_ALIKE = 0.5  # correlation of a picture with itself, whatever noise and brightness it got
_APART = 0.25  # by which the mirror image of a picture must be more alike than the picture
_SHARE = 0.1  # of them, with a mirrored target: two pictures may be equal in a few places


@dataclass(slots=True)
class MirroredTargets:
    """
    Whether inputs that come again have the targets that they had, and targets their inputs.

    first: the target of each input, and its mirror images. pictures: the first input of each target
    that is not its own mirror image. again, mirrored: how many inputs have come again, and with how
    many a target did that is the mirror image of their first. kept, turned: how many targets have,
    as they were or mirrored, and inputs that are more like another image of their first one.
    """

    first: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    pictures: dict[int, torch.Tensor] = field(default_factory=dict)
    kept: int = 0
    turned: int = 0
    again: int = 0
    mirrored: int = 0
    rows: int = 0
    numbers: int = 0

    def add(
        self, given: torch.Tensor, target: torch.Tensor, rows: list[int], *, alone: bool = True
    ) -> None:
        """
        Take in a batch: what a module was given, its targets, and a number for each input.

        alone: whether it was given nothing else, which may tell what is to be mirrored.
        """
        is_over = given.dim() > 3 and target.dim() > 2 and given.shape[-2:] == target.shape[-2:]
        room = is_over and min(target.shape[-2:]) >= _SIDE and self._has_room(target, given)
        if not room:
            return
        own = _numbers_of(target)
        turned = [_numbers_of(target.flip(sides)) for sides in _MIRRORS]
        images = list(zip(*turned, strict=True))
        for picture, number, mirrored in zip(given.detach(), own, images, strict=True):
            if alone and number not in mirrored:
                self._compare(picture, number, mirrored)
        for row, number, mirrored in zip(rows, own, images, strict=True):
            if row not in self.first:
                self.first[row] = number, set(mirrored)
                continue
            before, before_mirrored = self.first[row]
            self.again += 1
            self.mirrored += number != before and number in before_mirrored

    @property
    def is_apart(self) -> bool:
        """Whether inputs and targets are mirrored each by itself."""
        sides = ((self.mirrored, self.again), (self.turned, self.kept))
        return any(again >= _LEAST and some >= _SHARE * again for some, again in sides)

    @property
    def counts(self) -> tuple[int, int]:
        """How many came again mirrored, and how many came again: of inputs, or else of targets."""
        return (self.mirrored, self.again) if self.mirrored else (self.turned, self.kept)

    def _compare(self, picture: torch.Tensor, number: int, mirrored: tuple[int, ...]) -> None:
        """Compare an input with the first one of its target, mirrored as the target is since."""
        flat = picture.float()
        flat = flat - flat.mean((-2, -1), keepdim=True)
        flat = flat / flat.norm().clamp(min=1e-12)
        sides = dict(zip((number, *mirrored), _SIDES, strict=True))
        key = next((key for key in sides if key in self.pictures), None)
        if key is None:
            self.pictures[number] = flat
        elif self.pictures[key].shape == flat.shape:
            alike = {side: float((self.pictures[key].flip(side) * flat).sum()) for side in _SIDES}
            own = alike.pop(sides[key])
            self.turned += max(alike.values()) > max(_ALIKE, own + _APART)
            self.kept += 1

    def _has_room(self, target: torch.Tensor, given: torch.Tensor) -> bool:
        """Say whether more is to be hashed or kept, and count it."""
        self.rows += len(target)
        self.numbers += max(target.numel(), given.numel())
        return self.rows <= _ROWS and self.numbers <= _NUMBERS


def _numbers_of(target: torch.Tensor) -> list[int]:
    """Return a number for each row of a target."""
    return hash_rows(target.reshape(len(target), -1).double())
