"""Targets that say where in a picture something lies: whether they stay where it is mirrored."""

from dataclasses import dataclass, field

import torch

from trainguard.observe.tools.fingerprint import hash_rows

_SIDE = 8  # places along each side of a picture: in smaller ones nothing has a place
_COLUMNS = 16  # of targets: longer ones are what a network has made of a picture
_ROWS, _NUMBERS = 4096, 2**24  # of pictures, that are compared
_SIDES = (-1, -2)  # left and right, up and down
_LEAST = 48  # different targets: a correlation of 0.7 among so many is no chance
_TURNED = 16  # pictures that must have come mirrored
_SHARE = 0.1  # of those that came again: two pictures may have one target
_ALIKE = 0.5  # correlation of a picture with itself, whatever noise and brightness it got
_APART = 0.25  # by which the mirror image of a picture must be more alike than the picture
_TIED = 0.7  # correlation of two distances: how far a thing is off the middle, and its target
_EVEN = 0.35  # of the distance and the target itself: such a target is that of both images


@dataclass(slots=True)
class MirroredPlaces:
    """
    Pictures whose target came again, and by which sides they were mirrored then.

    first: the first picture of each target, its channels averaged. places: where its contents lie,
    along each side, from -1 to 1. targets: the numbers of each. kept: how many came again.
    """

    first: dict[int, torch.Tensor] = field(default_factory=dict)
    places: list[list[float]] = field(default_factory=list)
    targets: list[list[float]] = field(default_factory=list)
    turned: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_SIDES, 0))
    kept: int = 0
    rows: int = 0
    numbers: int = 0

    def add(self, given: torch.Tensor, target: torch.Tensor) -> None:
        """Take in a batch: the pictures that a module was given alone, and their targets."""
        is_place = given.dim() == 4 and min(given.shape[-2:]) >= _SIDE
        numbers = target.reshape(len(target), -1).double()
        fits = numbers.shape[1] <= _COLUMNS and target.is_floating_point()
        if not (is_place and fits and self.rows <= _ROWS and self.numbers <= _NUMBERS):
            return
        self.rows, self.numbers = self.rows + len(given), self.numbers + given.numel()
        pictures = given.detach().float().mean(1)
        pictures = pictures - pictures.flatten(1).median(1).values[:, None, None]
        places = torch.stack([_centre(pictures, side) for side in _SIDES], 1).tolist()
        flat = pictures - pictures.mean((-2, -1), keepdim=True)
        flat = flat / flat.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
        rows = zip(hash_rows(numbers), flat, places, numbers.tolist(), strict=True)
        for key, picture, place, own in rows:
            if key in self.first:
                self._compare(self.first[key], picture)
            else:
                self.first[key] = picture.clone()
                self.places.append(place)
                self.targets.append(own)

    def find(self) -> tuple[int, str, int] | None:
        """Return how many pictures were mirrored though a target is tied to it, how, and which."""
        for at, side in enumerate(_SIDES):
            turned = self.turned[side]
            if turned < max(_TURNED, _SHARE * self.kept) or len(self.targets) < _LEAST:
                continue
            off = torch.tensor(self.places)[:, at].abs()
            for column, own in enumerate(torch.tensor(self.targets).unbind(1)):
                apart = _correlate(off, (own - own.median()).abs())
                if apart >= _TIED and abs(_correlate(off, own)) <= _EVEN:
                    return turned, "left and right" if side == -1 else "up and down", column
        return None

    def _compare(self, first: torch.Tensor, picture: torch.Tensor) -> None:
        """Compare a picture with the first one of its target, and with its mirror images."""
        if first.shape != picture.shape:
            return
        alike = float((first * picture).sum())
        self.kept += 1
        for side in _SIDES:
            turned = float((first * picture.flip(side)).sum())
            self.turned[side] += turned > max(_ALIKE, alike + _APART)


def _centre(pictures: torch.Tensor, side: int) -> torch.Tensor:
    """Return where along a side what differs from the background lies, from -1 to 1."""
    across = pictures.square().sum(-2 if side == -1 else -1)
    places = torch.linspace(-1, 1, across.shape[1], device=across.device)
    weight: torch.Tensor = (across * places).sum(1) / across.sum(1).clamp(min=1e-12)
    return weight


def _correlate(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the correlation of two vectors; 0 where one of them does not vary."""
    both = torch.stack([one.double(), other.double()])
    value = float(torch.corrcoef(both)[0, 1])
    return value if value == value else 0.0
