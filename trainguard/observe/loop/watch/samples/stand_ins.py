"""Watches inputs for numbers that stand for what is missing, far from all that was measured."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_BATCHES, _KEPT = 8, 8  # of training that are looked at, of so many inputs of modules
_LARGEST, _WIDEST = 2**16, 1024  # numbers of a batch that are kept; columns
_INPUTS = 4  # tensors of a pass
_LEAST, _MOST = 4, 0.25  # times that a number comes in a column; a share of the column
_DIFFERENT = 8  # numbers besides, at least: one of few is a code
_FAR = 20.0  # ranges of all others between it and the next: the logarithm of zero is nearer
_SQUASHED = 0.1  # of the deviation of the column: what is left for all others


@dataclass(slots=True)
class _LearnedColumns:
    """The rows of one input of a module, with a number for each column."""

    parts: list[torch.Tensor] = field(default_factory=list)
    source: str = ""


class StandIns(Watcher):
    """
    The Probe event "stand-in": a number that comes again and again in a column of what is learned.

    It lies alone, beyond all others, further from them than they reach. measured: how many columns
    have it; reference: how many there are; label: the number, what the others reach from and to,
    and whether the column was scaled with it. One in all columns of a row is padding.
    """

    makes = ("Probe:stand-in",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._inputs: dict[tuple[str, int], _LearnedColumns] = {}

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Keep what a pass that learns is given."""
        if not forward.gradients:
            return
        for place, given in enumerate(self.recorder.given[:_INPUTS]):
            key = forward.module, place
            known = key in self._inputs or len(self._inputs) < _KEPT
            if known and _has_columns(given):
                own = self._inputs.setdefault(key, _LearnedColumns(source=caller()))
                rows = given.detach().flatten(0, -2)
                alike = not own.parts or own.parts[0].shape[1] == rows.shape[1]
                if alike and len(own.parts) < _BATCHES:
                    own.parts.append(rows.clone())

    def finish(self) -> Iterable[Event]:
        """Return what was found, for each input."""
        for own in self._inputs.values():
            rows = torch.cat(own.parts)
            own.parts.clear()
            rows = rows[~_is_padding(rows)]
            self.looked |= {"stand-in"} if len(rows) else set()
            found = [each for each in map(_find, rows.T) if each]
            if found:
                number, low, high, scaled = found[0]
                label = f"{number!r} {low!r} {high!r} {int(scaled)}"
                yield make_probe(
                    "stand-in", len(found), rows.shape[1], label=label, source=own.source
                )


def _is_padding(rows: torch.Tensor) -> torch.Tensor:
    """Say which rows have one number in all of several columns: nothing is measured there."""
    several = rows.shape[1] > 1
    return (rows == rows[:, :1]).all(1) if several else torch.zeros(len(rows), dtype=torch.bool)


def _find(column: torch.Tensor) -> tuple[float, float, float, bool] | None:
    """Return the number that stands alone, what the others reach from and to, and its scale."""
    ordered = column.double().sort().values
    if not len(ordered) or not bool(ordered.isfinite().all()):
        return None
    for number in (ordered[0], ordered[-1]):
        others = ordered[ordered != number]
        count = len(ordered) - len(others)
        if count < _LEAST or count > _MOST * len(ordered) or len(torch.unique(others)) < _DIFFERENT:
            continue
        low, high = others[0], others[-1]
        apart = max(low - number, number - high)
        if apart > _FAR * (high - low):
            scaled = abs(ordered.mean()) < 1 and others.std() < _SQUASHED
            return float(number), float(low), float(high), bool(scaled)
    return None


def _has_columns(given: torch.Tensor) -> bool:
    """Say whether an input may have a column for each thing that is measured."""
    if type(given) is not torch.Tensor or not given.is_cpu or given.grad_fn is not None:
        return False
    able = given.is_floating_point() and has_rows(given) and given.dim() in (2, 3)
    return able and 1 < given.numel() <= _LARGEST and given.shape[-1] <= _WIDEST
