"""Windows of a series: whether a column of theirs is made from moments that come after them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import Hashes, hashes_of_rows
from trainguard.observe.tools.least_squares import Table, fit_columns

_SHORTEST, _COLUMNS = 16, 16  # moments of a window at least, and columns at most
_ROWS, _NUMBERS = 1024, 2**21  # windows that are kept, and numbers in them
_PAIRS = 8  # windows that follow another one by some moments: they show what its target is
_REACH = 12  # moments to each side that a column may be made from
_EQUATIONS = 4096  # that a column is fitted by
_EXACT = 1e-3  # of a column's deviation: the rounding of narrow numbers
_OPEN = 0.02  # of it that the past must leave open: what has a period is known from either side
_HISTORY = 4  # moments before the end, which tell part of what comes
_TOLD = 0.1  # of what they leave open that the target explains: one moment of seven in a mean
_CERTAIN = 30.0  # an F of one and many degrees: by chance once in 10 million


class Centred(NamedTuple):
    """A column that is made of another one: up to so many moments before, and after."""

    column: int
    of: int
    before: int
    after: int


@dataclass(slots=True)
class CentredColumns:
    """
    The first windows that a module learned from, and their targets.

    is_series: whether targets were found to be later values of a column, so that there was
    something to look for.
    """

    windows: list[torch.Tensor] = field(default_factory=list)
    targets: list[torch.Tensor] = field(default_factory=list)
    rows: int = 0
    is_series: bool = False

    def add(self, given: torch.Tensor, target: torch.Tensor) -> None:
        """Take in a batch: windows (N, T, F), and what comes next, which begins each target."""
        shape = given.shape
        fits = given.dim() == 3 and 1 < shape[2] <= _COLUMNS and shape[1] >= _SHORTEST
        room = self.rows < _ROWS and (self.rows + len(given)) * shape[1:].numel() <= _NUMBERS
        if fits and room and target.is_floating_point() and target.numel() >= len(target):
            self.windows.append(given.detach().clone())
            self.targets.append(target.detach().reshape(len(target), -1)[:, 0].clone())
            self.rows += len(given)

    def find(self) -> Centred | None:
        """Return a column that is made from what comes after its window, the target among it."""
        if len({each.shape[1:] for each in self.windows}) != 1:
            return None
        stacked = torch.cat(self.windows).double()
        windows, moments = array_of(stacked), hashes_of_rows(stacked.flatten(0, 1))
        targets = array_of(torch.cat(self.targets).double())
        for of in _find_next(windows, moments.reshape(windows.shape[:2]), targets):
            self.is_series = True
            for found in _find_centred(windows, of):
                if _tells_target(windows, targets, *found):
                    return found[0]
        return None


def _find_next(windows: Table, moments: Hashes, targets: Table) -> Iterator[int]:
    """Yield the columns of which a value soon after is the target, up to its scale."""
    for ahead in range(1, min(_REACH, windows.shape[1] // 2) + 1):
        begins = {row.tobytes(): place for place, row in enumerate(moments[:, :-ahead])}
        ends = enumerate(row.tobytes() for row in moments[:, ahead:])
        pairs = [(place, begins[row]) for place, row in ends if row in begins]
        if len(pairs) < _PAIRS:
            continue
        first, second = (np.array(side) for side in zip(*pairs, strict=True))
        size = float(np.std(targets[first]))
        for column in range(windows.shape[2]):
            _, rest = fit_columns(windows[second, -1, column][:, None], targets[first])
            if size > 0 and rest <= _EXACT * size:
                yield column


def _find_centred(windows: Table, of: int) -> Iterator[tuple[Centred, Table]]:
    """Yield columns that are sums of another one around each moment, with the factors."""
    length = windows.shape[1]
    reach = min(_REACH, (length - 6) // 2)
    places = np.arange(reach, length - reach)
    some = windows[:: -(-len(windows) * len(places) // _EQUATIONS)]
    lags = np.arange(-reach, reach + 1)
    around = np.concatenate([some[:, place + lags, of] for place in places])
    for column in range(windows.shape[2]):
        own = np.concatenate([some[:, place, column] for place in places])
        size = float(np.std(own))
        if column == of or size == 0:
            continue
        factors, rest = fit_columns(around, own)
        _, open_rest = fit_columns(around[:, : reach + 1], own)
        if rest <= _EXACT * size and open_rest >= _OPEN * size:
            used = lags[np.abs(factors[:-1]) > _EXACT * np.abs(factors[:-1]).max()]
            yield Centred(column, of, -int(min(used.min(), 0)), int(used.max())), factors


def _tells_target(windows: Table, targets: Table, found: Centred, factors: Table) -> bool:
    """Say whether a column's last value depends on the target beyond what is in its window."""
    reach = len(factors) // 2 - 1  # there are as many to each side, the moment's own, a constant
    past = windows[:, -1 - reach :, found.of] @ factors[: reach + 1] + factors[-1]
    after = windows[:, -1, found.column] - past
    history = windows[:, -_HISTORY:, found.of]
    _, without = fit_columns(history, after)
    _, told = fit_columns(np.column_stack([history, targets]), after)
    size = float(np.std(windows[:, -1, found.column]))
    share = 1 - (told / without) ** 2 if without > _OPEN * size else 0.0
    freedom = len(windows) - _HISTORY - 2
    return share >= _TOLD and (share >= 1 or share / (1 - share) * freedom >= _CERTAIN)
