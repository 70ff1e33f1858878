"""Watches columns that a loss compares: whether two outputs go with each other's targets."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.losses.loss_calls import DISTANCES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.tools.patches import Patches

_STEPS = {1, 2, 4, 8, 16, 32, 64, 128, 256}  # that are looked at
_MOST_PLACES = 8  # lines whose calls are looked at
_WIDEST = 8  # columns: more are no coordinates
_LEAST_ROWS, _ROWS = 24, 4096  # correlations of fewer are often high by chance; rows that are read
_GOES, _EXACT = 0.8, 1 - 1e-6  # a correlation from which columns go together, or are the same
_APART = 0.3  # by which a column goes less with its own target
_UNLIKE = 0.5  # the highest correlation of the two targets with each other


@dataclass(slots=True)
class _ComparedAt:
    """
    The calls of one line: in how many of them two columns were crossed, of how many.

    step: the last one of which a call was looked at.
    """

    crossed: int = 0
    calls: int = 0
    columns: tuple[int, int] = (0, 0)
    step: int = -1


class CrossedColumns(Watcher):
    """
    The Probe event "crossed": pairs of columns of a loss that go with each other's targets.

    Only where no other loss of the same shape has columns that go with their own: what is tried in
    every order, as sources of sound are, is in one of them.
    """

    makes = ("Probe:crossed",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[str, _ComparedAt] = {}
        self._own = set[tuple[int, int]]()  # pairs of columns that went with their own targets

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if any(place.calls for place in self._places.values()):
            self.looked.add("crossed")
        for source, place in self._places.items():
            if place.crossed and place.columns not in self._own:
                yield Probe(
                    probe="crossed",
                    measured=float(place.crossed),
                    reference=float(place.calls),
                    step=place.step,
                    label=f"columns {place.columns[0]} and {place.columns[1]}",
                    source=source,
                )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Compare the columns of a call, at a few steps, once at each line."""
        step = self.recorder.steps
        if (
            step not in _STEPS
            or tally.function not in DISTANCES
            or not _are_columns(scores, target)
        ):
            return
        room = len(self._places) < _MOST_PLACES or tally.source in self._places
        place = self._places.setdefault(tally.source, _ComparedAt()) if room else None
        if place is None or place.step == step:
            return
        place.step, place.calls = step, place.calls + 1
        with torch.no_grad():
            both = [_rows(scores), _rows(target)]
            self.recorder.reads.ask(self, both, partial(self._compare, place))

    def _compare(self, place: _ComparedAt, both: list[torch.Tensor]) -> None:
        """Look at all pairs of columns."""
        width = both[0].shape[1]
        table = torch.corrcoef(torch.cat([rows.double() for rows in both], 1).T).abs()
        for pair in combinations(range(width), 2):
            own, cross, alike = _correlations(table, *pair)
            if min(own) >= _GOES:
                self._own.add(pair)
            within = min(cross) >= _GOES and max(cross) <= _EXACT and alike <= _UNLIKE
            if within and min(cross) - max(own) >= _APART and place.columns in ((0, 0), pair):
                place.crossed, place.columns = place.crossed + 1, pair


def _correlations(
    table: torch.Tensor, i: int, j: int
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return how two columns go with their own targets, with each other's, and these together."""
    width = len(table) // 2
    own = float(table[i, width + i]), float(table[j, width + j])
    cross = float(table[i, width + j]), float(table[j, width + i])
    return own, cross, float(table[width + i, width + j])


def _are_columns(scores: torch.Tensor, target: Any) -> bool:
    """Say whether a few columns are compared with as many, in enough rows."""
    if not isinstance(target, torch.Tensor) or scores.shape != target.shape or scores.dim() < 2:
        return False
    plain = scores.is_floating_point() and target.is_floating_point() and not scores.is_nested
    width = scores.shape[-1]
    return plain and 2 <= width <= _WIDEST and scores.numel() >= _LEAST_ROWS * width


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return some rows of a tensor of columns; a copy where they are read later on."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1])[:_ROWS]
    return rows if rows.is_cpu else rows.clone()
