"""Watches tables of a batch's pairs: whether what belongs to a row stands in other columns too."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches

_CALLS = 8  # of each place that are looked at
_LEAST, _LARGEST = 16, 1024  # samples
_ROWS = 8  # in which two columns are compared: what is one thing has one score in all
_NEAR = 1e-5  # of how far scores spread: products of one vector may be added up otherwise
_MOST_OF_ONE = 0.5  # of the columns: a model that has collapsed gives all of them one score


@dataclass(slots=True)
class _Repetition:
    """Rows of the tables of one place: all, and those whose partner has a second column."""

    calls: int = 0
    rows: int = 0
    repeated: int = 0


class RepeatedCandidates(Watcher):
    """
    The Probe event "repeated candidates": rows whose partner is among their own negatives.

    Of a cross-entropy over a table with a row and a column for each pair of a batch, which are
    pulled together on its diagonal: the partner stands in another column, too, and is pushed away
    there. measured: such rows; reference: all rows that were looked at.
    """

    makes = ("Probe:repeated candidates",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[str, _Repetition] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return the places where there are such rows."""
        for source, place in self._places.items():
            if place.repeated:
                measured, reference = place.repeated, place.rows
                yield make_probe("repeated candidates", measured, reference, source=source)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at a table whose diagonal is what is pulled up."""
        if tally.function != "cross_entropy" or not value.requires_grad or not scores.is_cpu:
            return
        rows = len(scores) if scores.dim() == 2 else 0
        if rows != scores.shape[-1] or not _LEAST <= rows <= _LARGEST or target.dim() != 1:
            return
        place = self._places.setdefault(tally.source, _Repetition())
        if place.calls >= _CALLS or not bool((target == torch.arange(rows)).all()):
            return
        place.calls += 1
        repeated = _count_repeated(scores.detach().float())
        if repeated is not None:
            self.looked.add("repeated candidates")
            place.rows += rows
            place.repeated += repeated


def _count_repeated(scores: torch.Tensor) -> int | None:
    """Return how many rows have their partner in two columns; None where columns are alike."""
    rows = len(scores)
    known = scores[scores.isfinite()]
    near = _NEAR * float(known.std()) if known.numel() > 1 else 0.0
    few = scores[:: -(-rows // _ROWS)].nan_to_num(neginf=torch.finfo(scores.dtype).min / 4)
    alike = torch.ones(rows, rows, dtype=torch.bool)
    for row in few:
        alike &= (row[:, None] - row[None, :]).abs() <= near
    if int(alike.sum(1).max()) > _MOST_OF_ONE * rows:
        return None
    alike &= (scores - scores.diagonal()[:, None]).abs() <= near  # and not masked in its own row
    return int((alike.sum(1) > 1).sum())
