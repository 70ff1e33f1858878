"""By how much data and noise are scaled in what a model is given: x = a * data + b * noise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

_LEAST = 6  # numbers that two scales are fitted to: four more than any two would fit
_MOST = 512  # fits that are kept
_MISFIT = 1e-3  # of what is given: the rounding of narrow numbers, and no other sum
_FITTED = 0.9  # of the rows, so that it is this sum indeed
_ROWS = 4096  # of one pass
_TABLES = 6  # that may be the data


@dataclass(slots=True)
class NoiseScales:
    """
    The scales of data and noise, as far as they are seen: one pair for each row or each time.

    pairs: (of the data, of the noise). tried, fitted: rows that were looked at, and those that are
    such a sum.
    """

    pairs: list[tuple[float, float]] = field(default_factory=list)
    tried: int = 0
    fitted: int = 0

    def add(
        self,
        given: torch.Tensor,
        noise: torch.Tensor,
        tables: Iterable[torch.Tensor],
        times: Iterable[torch.Tensor],
    ) -> None:
        """
        Take in a pass: what was given, its noise, what may be its data, and what may be its times.

        All but the times have one shape, (N, ...); times have a number for each row.
        """
        rows = len(given)
        if len(self.pairs) >= _MOST or rows > _ROWS:
            return
        self.tried += rows
        groups = list(_group(given, times))
        for table in list(tables)[:_TABLES]:
            for group in groups:
                pairs, fitted = _fit(given, noise, table, group)
                if fitted >= _FITTED * rows:
                    self.fitted += rows
                    self.pairs += pairs
                    return

    @property
    def is_sum(self) -> bool:
        """Whether what is given is such a sum nearly always."""
        return self.fitted >= _FITTED * self.tried > 0


def _group(given: torch.Tensor, times: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield a number for each row, the same for rows of one time."""
    if given[0].numel() >= _LEAST:
        yield torch.arange(len(given), device=given.device)
        return
    for each in times:
        if each.numel() == len(given) and each.device == given.device:
            found, group = torch.unique(each.detach().reshape(-1), return_inverse=True)
            if 1 < len(found) <= len(given) // 2:
                yield group


def _fit(
    given: torch.Tensor, noise: torch.Tensor, data: torch.Tensor, group: torch.Tensor
) -> tuple[list[tuple[float, float]], int]:
    """Return the scales of each group by least squares, and how many rows are their sum."""
    x, n, d = (each.detach().flatten(1).double() for each in (given, noise, data))
    products = torch.stack([d * d, d * n, n * n, x * d, x * n, x * x]).sum(2)
    count = int(group.max()) + 1
    sums = products.new_zeros(6, count).index_add_(1, group, products)
    sizes = torch.bincount(group, minlength=count)
    dd, dn, nn, xd, xn, xx = sums
    free = dd * nn - dn * dn
    known = (free > 1e-9 * dd * nn) & (sizes * x.shape[1] >= _LEAST)
    free = torch.where(known, free, 1.0)
    a, b = (xd * nn - xn * dn) / free, (xn * dd - xd * dn) / free
    error = xx - a * xd - b * xn
    fits = known & (error <= _MISFIT**2 * xx) & (xx > 0)
    # Groups of too few rows are no evidence against it.
    fitted = int(sizes[fits].sum()) + int(sizes[~known].sum()) * bool(fits.any())
    return list(zip(a[fits].tolist(), b[fits].tolist(), strict=True)), fitted
