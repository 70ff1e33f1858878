"""Tables that are mixed of two others, each row by scales whose squares add up to one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from trainguard.observe.tools.least_squares import Table

_ROWS, _COLUMNS = 256, 64  # of each table that are looked at
_MISFIT = 1e-3  # of what is mixed: the rounding of float32 is a thousandth of that
_LAW = 2e-3  # that the squares of both scales miss one by
_MOST = 0.9  # of the rows: of a few rows two parts are too much alike
_ALIKE = 1e-4  # of the product of two squares: parts in one direction have no scales of their own
_LEVELS = 8  # in one pass: one for all samples is no schedule
_FEWEST = 128  # numbers whose moments tell normal ones
_DEVIATIONS = 5.0  # of chance
_RELATED = (0.05, 0.999)  # the size of a correlation of what is mixed again
NOISE = {"e", "eps", "epsilon", "epsilons", "noise", "noises"}


class NamedTable(NamedTuple):
    """A table of numbers (N, K), and the words in its name."""

    words: set[str]
    rows: Table


@dataclass(frozen=True, slots=True)
class NoisyMixture:
    """
    What was mixed, for each row: the scale of its noise.

    is_first: whether the data are no mixture with noise themselves, as far as can be seen.
    """

    levels: Table
    is_first: bool

    def often(self, share: float) -> float:
        """Return how much noise such a share of the rows has at most."""
        return float(np.quantile(self.levels, share))


def sample_of(table: Table) -> Table:
    """Return some rows of a table (N, ...), and some of their numbers."""
    rows = table[:_ROWS].reshape(min(len(table), _ROWS), -1)
    step = max(1, rows.shape[1] // _COLUMNS)
    return rows[:, ::step][:, :_COLUMNS].astype(np.float64)


def find_mixtures(tables: list[NamedTable], target: Table) -> Iterator[NoisyMixture]:
    """Yield the mixtures of data and noise among tables, whose parts a target is made of."""
    if not tables or target.shape[1] < 2:
        return
    stack = np.stack([*(each.rows for each in tables), target])
    products = np.einsum("krc,lrc->rkl", stack, stack)
    columns = target.shape[1]
    given = range(len(tables))
    for mixed, data, noise in permutations(given, 3):
        if tables[mixed].words & NOISE or not _is_noise(tables[noise], tables[data]):
            continue
        scales = _fit(products, mixed, data, noise, columns)
        if scales is None or not _keeps_variance(*scales):
            continue
        if _fit(products, len(tables), data, noise, columns) is not None:
            others = [place for place in given if place not in (mixed, data, noise)]
            first = not any(
                _is_related(tables[place].rows, tables[data].rows)
                for place in others
                if _fit(products, place, data, noise, columns) is None
            )
            yield NoisyMixture(scales[1], first)


def _fit(
    products: Table, mixed: int, data: int, noise: int, columns: int
) -> tuple[Table, Table] | None:
    """Return the scales of two parts in each row; None where it is no sum of them."""
    dd, dn, nn = products[:, data, data], products[:, data, noise], products[:, noise, noise]
    xd, xn, xx = products[:, mixed, data], products[:, mixed, noise], products[:, mixed, mixed]
    free = dd * nn - dn * dn
    known = (free > _ALIKE * dd * nn) & (xx > 0)
    if known.mean() < _MOST:
        return None
    safe = np.where(known, free, 1.0)
    a, b = (xd * nn - xn * dn) / safe, (xn * dd - xd * dn) / safe
    missed = xx - a * xd - b * xn
    # Of two numbers any two scales make a sum: the law of their squares tells that it is one.
    fits = (missed <= _MISFIT**2 * xx) | (columns == 2)
    return (a, b) if fits[known].all() else None


def _keeps_variance(a: Table, b: Table) -> bool:
    """Say whether the squares of scales add up to one, in rows of different noise."""
    keeps = (np.abs(a * a + b * b - 1) <= _LAW) & (a >= -_LAW) & (b >= -_LAW)
    return bool(keeps.mean() >= _MOST) and len(np.unique(b.round(3))) >= _LEVELS


def _is_noise(table: NamedTable, other: NamedTable) -> bool:
    """Say whether a table is the noise of two, by its name, or as the one that is normal."""
    if table.words & NOISE or other.words & NOISE:
        return bool(table.words & NOISE) and not other.words & NOISE
    return _is_normal(table.rows) and not _is_normal(other.rows)


def _is_normal(rows: Table) -> bool:
    """Say whether numbers have the first four moments of standard normal ones."""
    count = rows.size
    if count < _FEWEST:
        return False
    moments = ((rows, 0.0, 1.0), (rows**2, 1.0, 2.0), (rows**4, 3.0, 96.0))
    return all(
        abs(power.mean() - wanted) <= _DEVIATIONS * np.sqrt(spread / count)
        for power, wanted, spread in moments
    )


def _is_related(other: Table, data: Table) -> bool:
    """Say whether one table goes with another, and does not follow from it."""
    if other.std() == 0 or data.std() == 0:
        return False
    low, high = _RELATED
    return bool(low < abs(np.corrcoef(other.ravel(), data.ravel())[0, 1]) < high)
