"""How a picture has been moved: shifted, turned by quarters or mirrored against another one."""

from functools import cached_property

import torch
from torch.nn import functional

_LONGEST = 96  # places along a side: larger pictures are averaged down to so many
_SHARE = 3  # of a side: pictures are not looked for at a larger distance than its third
_ALIKE = 0.8  # correlation of two views of one picture, whatever noise and brightness they got
_APART = 0.2  # by which a correlation is another one, and no rounding of a shift
_PLAUSIBLE = 0.05  # below the best correlation: any of these may be how it was moved
_FLAT = 1e-9  # of the whole variation: what varies by less is constant


class Moves:
    """
    The correlation of a picture with each way of moving another one of the same size.

    table: one for each orientation, and each shift along both sides; -1 where too little is left.
    Pictures are matrices of any numbers: a mask of classes is one too.
    """

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.table = torch.stack([_correlate(_shrink(first), one) for one in _turns(second)])

    @cached_property
    def best(self) -> float:
        """The correlation with what is moved in the way that fits best."""
        return float(self.table.max())

    @property
    def is_known(self) -> bool:
        """Whether the second picture was moved as a whole, and surely somewhere."""
        return self.best >= _ALIKE and self.stays < self.best - _APART

    @property
    def stays(self) -> float:
        """The correlation with what is not moved at all."""
        _, high, wide = self.table.shape
        return float(self.table[0, high // 2, wide // 2])

    def parts_from(self, other: "Moves") -> bool:
        """Say whether no way in which the others may have been moved is one of these pictures."""
        plausible = (other.table >= other.best - _PLAUSIBLE).double()[:, None]
        near = torch.max_pool2d(plausible, 3, stride=1, padding=1)[:, 0] > 0  # a rounded shift
        return float(self.table[near].max()) < self.best - _APART and self._is_far(other)

    def _is_far(self, other: "Moves") -> bool:
        """Say whether they moved by another way than about that of the others."""
        own, its = _place_of(self.table), _place_of(other.table)
        far = (own[1:] - its[1:]).norm() >= its[1:].norm() / 2  # what moves itself is as near
        return bool(own[0] != its[0]) or bool(far)


def _place_of(table: torch.Tensor) -> torch.Tensor:
    """Return the orientation and the shift that fit best."""
    turn, row, column = torch.unravel_index(table.argmax(), table.shape)
    _, high, wide = table.shape
    return torch.stack([turn, row - high // 2, column - wide // 2]).double()


def _shrink(picture: torch.Tensor) -> torch.Tensor:
    """Return a picture of at most so many places along a side."""
    values = picture.double()
    factor = -(-max(values.shape) // _LONGEST)
    return values if factor == 1 else functional.avg_pool2d(values[None, None], factor)[0, 0]


def _turns(picture: torch.Tensor) -> list[torch.Tensor]:
    """Return a picture in each orientation that has its shape, itself first."""
    values = _shrink(picture)
    square = values.shape[0] == values.shape[1]
    turned = [values.rot90(quarters) for quarters in ((0, 1, 2, 3) if square else (0, 2))]
    return turned + [one.flip(-1) for one in turned]


def _correlate(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the correlation of what two pictures share, for each shift of the second one."""
    high, wide = first.shape
    first, second = first - first.mean(), second - second.mean()
    size = (2 * high, 2 * wide)
    here = torch.ones_like(first)

    def overlap(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the sum of products over the shared places, for each shift."""
        both = torch.fft.rfft2(one, size) * torch.fft.rfft2(other, size).conj()
        shifted = torch.fft.fftshift(torch.fft.irfft2(both, size))
        up, left = high // _SHARE, wide // _SHARE
        shared: torch.Tensor = shifted[high - up : high + up + 1, wide - left : wide + left + 1]
        return shared

    count = overlap(here, here)
    ones, others = overlap(first, here), overlap(here, second)
    own = overlap(first.square(), here) - ones.square() / count
    its = overlap(here, second.square()) - others.square() / count
    varies = (own > _FLAT * first.square().sum()) & (its > _FLAT * second.square().sum())
    product = (own * its).clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    both = (overlap(first, second) - ones * others / count) / product
    return torch.where(varies, both, -1.0)
