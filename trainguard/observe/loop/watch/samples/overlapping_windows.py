"""Windows of a series that are learned from, and those of evaluations that reach into the same."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainguard.observe.tools.fingerprint import Hashes, hashes_of_rows

_RUN = 6  # moments in a row, all of them different: two series hardly share such a run
_LEAST = 2 * _RUN  # moments of a window
_ONE_IN = 8  # runs that are kept, chosen by what is in them: so they are chosen again elsewhere
_MOST = 2**18  # that are kept
_TRIED = 512  # windows that are learned from before it is known whether any two overlap
_ROWS = 16  # of a pass of an evaluation: of fewer, a share tells nothing
_PASSES, _MOSTLY = 3, 0.75  # of evaluations: a test at the end comes once
_MIX = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio in 64 bits, as hashes are spread by

Runs = list[tuple[Hashes, Any, Any]]  # for each axis: what is in a run, its window, its place there


@dataclass(slots=True)
class OverlappingWindows:
    """
    Where the runs of moments lie in the windows that a module learned from.

    first, last: their earliest and latest place, by axis and by what is in them.
    learned: how many windows; moved: whether any run came at two places in them.
    passes, inside: of evaluations; those whose windows mostly end inside of what was learned from.
    rows, known: the windows of these passes, and those of them that do.
    """

    first: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    last: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    learned: int = 0
    moved: bool = False
    passes: int = 0
    inside: int = 0
    rows: int = 0
    known: int = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether so many were learned from, and none overlaps another: they are no windows."""
        return self.learned > _TRIED and not self.moved

    @property
    def is_shared(self) -> bool:
        """Whether what is evaluated lies inside, but for a test of later windows at the end."""
        enough = self.inside >= _PASSES and self.inside >= _MOSTLY * self.passes
        return bool(self.passes) and (self.inside == self.passes or enough)

    def learn(self, count: int, runs: Runs) -> None:
        """Take down where the runs of so many windows lie that were learned from."""
        self.learned += count if runs else 0
        for first, last, (contents, _, places) in zip(self.first, self.last, runs, strict=False):
            if len(first) < _MOST:
                for content, place in zip(contents.tolist(), places.tolist(), strict=True):
                    first[content] = min(place, first.get(content, place))
                    last[content] = max(place, last.get(content, place))
                    self.moved = self.moved or last[content] > first[content]

    def evaluate(self, runs: Runs, new: list[bool]) -> None:
        """
        Count the windows of a pass after which windows that were learned from go on.

        new: whether each was not learned from as it is.
        """
        axis = self._axis()
        if axis is None or axis >= len(runs) or sum(new) < _ROWS:
            return
        contents, rows, places = runs[axis]
        entries = zip(contents.tolist(), rows.tolist(), places.tolist(), strict=True)
        # A window that holds the same run earlier began later: it has seen what comes after.
        inside = {
            row
            for content, row, place in entries
            if new[row] and self.first[axis].get(content, place) < place
        }
        self.passes += 1
        self.inside += 2 * len(inside) > sum(new)
        self.rows += sum(new)
        self.known += len(inside)

    def _axis(self) -> int | None:
        """Return the axis of time: the one along which what was learned from overlaps."""
        for axis, (first, last) in enumerate(zip(self.first, self.last, strict=True)):
            moved = Counter(place for content, place in first.items() if last[content] > place)
            # What stands behind the moments, such as the hour, makes runs with the last of them,
            # none of which comes anywhere else.
            here = sum(place in moved for place in first.values())
            if 2 * moved.total() > here:
                return axis
        return None


def runs_in(windows: torch.Tensor) -> Runs:
    """Return the runs of moments in windows: (N, T), (N, T, K), or (N, K, T) by the other axis."""
    if windows.dim() not in (2, 3) or windows.dtype not in (torch.float32, torch.float64):
        return []
    series = windows.detach().unsqueeze(-1) if windows.dim() == 2 else windows.detach()
    each = [series, series.transpose(1, 2)] if windows.dim() == 3 else [series]
    return [_runs_along(tensor) for tensor in each]


def _runs_along(series: torch.Tensor) -> tuple[Hashes, Any, Any]:
    """Return the chosen runs along the second axis of (N, T, K), if there are any."""
    count, length, width = series.shape
    nothing = np.empty(0, np.int64)
    if length < _LEAST or not width:
        return nothing.astype(np.uint64), nothing, nothing
    moments = hashes_of_rows(series.reshape(count * length, width)).reshape(count, length)
    spans = np.lib.stride_tricks.sliding_window_view(moments, _RUN, axis=1)
    factors = _MIX ** np.arange(1, _RUN + 1, dtype=np.uint64)
    contents: Hashes = (spans * factors).sum(-1, dtype=np.uint64)
    chosen = (contents ^ (contents >> np.uint64(32))) % np.uint64(_ONE_IN) == 0
    rows, places = np.nonzero(chosen)
    ordered = np.sort(spans[rows, places], axis=-1)
    rich = (ordered[:, 1:] != ordered[:, :-1]).all(-1)  # silence and steps are no evidence
    return contents[rows[rich], places[rich]], rows[rich], places[rich]
