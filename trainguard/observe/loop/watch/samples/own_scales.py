"""Watches for tables that are standardised each by its own mean: of training, and of evaluation."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.user_line import caller

_BATCHES = 256  # of training before the first evaluation; and of that
_LARGEST = 2**16  # elements of a batch
_ROWS = 16  # of an evaluation, at least
_COLUMNS = 2  # that have a spread, at least
_NEAR = 1e-4  # of a mean; that of other rows is further away by chance in all columns
_SPREAD = 1e-3  # of a standard deviation, beside what another divisor makes


@dataclass(slots=True)
class _Table:
    """
    The rows that a module was given: sums of columns, and of squares in an evaluation.

    keys: the first numbers of rows, by which they are known again. batches: -1 once it is useless.
    """

    sums: list[torch.Tensor] = field(default_factory=list)
    keys: set[tuple[float, ...]] = field(default_factory=set)
    rows: int = 0
    batches: int = 0
    source: str = ""

    def add(self, given: torch.Tensor, squares: bool) -> None:
        """Take in a batch."""
        new = [given.sum(0), *([given.square().sum(0)] if squares else ())]
        if self.sums and self.sums[0].shape != new[0].shape:
            self.batches = -1
            return
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.sums else new
        self.keys.update(map(tuple, given[:, :_COLUMNS].tolist()))
        self.rows += len(given)
        self.batches += 1

    def is_centred(self) -> bool:
        """Say whether the mean of each column is zero."""
        return bool((self.sums[0].abs() < _NEAR * self.rows).all())

    def is_standard(self) -> bool:
        """Say whether each column has a mean of zero, and a spread of one or none."""
        spread = (self.sums[1] / self.rows).sqrt()
        wide = spread[spread > _NEAR]
        near = (wide - 1).abs() < _SPREAD + 1 / self.rows
        return self.is_centred() and len(wide) >= _COLUMNS and bool(near.all())


class OwnScales(Watcher):
    """
    The Probe event "own scale": a first evaluation whose table is standardised by itself.

    That of the training is so too, and has other rows: one mean cannot have made both.
    """

    makes = ("Probe:own scale",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tables: dict[str, tuple[_Table, _Table]] = {}  # of training, of evaluation
        self._found: list[Probe] = []
        self._done: set[str] = set()

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Add up a batch, up to the end of the first evaluation."""
        if forward.module in self._done or not self.recorder.probe:
            return
        given = next(iter(self.recorder.given), None)
        trained, shown = self._tables.setdefault(forward.module, (_Table(), _Table()))
        if forward.gradients and shown.rows:
            self._close(forward.module)
        elif given is None or not _is_table(given) or trained.batches >= _BATCHES:
            self._done.add(forward.module)
        elif forward.gradients:
            trained.add(given.detach(), squares=False)
        elif trained.rows:
            shown.source = shown.source or caller(4)
            shown.add(given, squares=True)
        if min(trained.batches, shown.batches) < 0 or shown.batches >= _BATCHES:
            self._done.add(forward.module)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for name in self._tables.keys() - self._done:
            self._close(name)
        return self._found

    def _close(self, name: str) -> None:
        """Compare the two tables, once."""
        self._done.add(name)
        trained, shown = self._tables.pop(name)
        again = len(shown.keys & trained.keys)
        if shown.rows < _ROWS or not trained.rows or 2 * again > len(shown.keys):
            return
        self.looked.add("own scale")
        if trained.is_centred() and shown.is_standard():
            self._found.append(
                make_probe("own scale", shown.rows, trained.rows, label=name, source=shown.source)
            )


def _is_table(given: torch.Tensor) -> bool:
    """Say whether an input is a table of numbers that are cheap to add up."""
    plain = given.is_cpu and given.layout == torch.strided and given.grad_fn is None
    able = (
        plain
        and has_memory(given)
        and given.dtype in (torch.float32, torch.float64)
        and given.dim() == 2
    )
    return able and given.shape[1] >= _COLUMNS and 0 < given.numel() <= _LARGEST
