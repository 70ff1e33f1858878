"""Watches evaluations whose batches are scaled each by its own numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler

from trainguard.events.base import Event
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_ROWS, _LARGEST = 8, 2**18  # of a batch; numbers in it
_BATCHES = 8  # that are looked at: more can say nothing else
_ALONE = 4  # batches, where one number alone is scaled by: chance has it in one of 10000
_SEVERAL = 2  # batches, and columns that were scaled
# Of the error of a mean, and of a deviation, of so many numbers: chance is as near in 2 of 1000
# columns, and 1 of 100; or what rounding and an epsilon leave.
_NEAR, _NEAR_SPREAD = 3e-3, 1e-2
_ROUNDING, _EPSILON = 1e-6, 1e-4
_PAIRED = 64  # columns that are compared with each other
_RARE = 0.02  # of the rows that have the least or the largest number of a column
_OTHER = 1e-6  # between the moments of two batches: a grid, and -1 and 1, have the same in each


@dataclass(slots=True)
class _Scaled:
    """
    The batches of evaluations that a module was given, all of which are scaled by their numbers.

    columns: which of them are, by what their numbers were taken along. moments: of the latest
    batch. sizes: rows of the batches; in_turn: of those of the latest evaluation.
    counted: how many batches of samples a loader has served.
    """

    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    in_turn: list[int] = field(default_factory=list)
    step: int = -1
    counted: int = 0
    cut: bool = False
    source: str = ""

    def add(self, given: torch.Tensor, step: int) -> bool:
        """Take in a batch, and say whether anything in it is scaled as in all others."""
        for by, scaled, moments in _measure(given):
            known = self.columns.get(by)
            if known is not None and known.shape == scaled.shape:
                scaled = scaled & known & ((moments - self.moments[by]).abs() > _OTHER)
            self.columns[by], self.moments[by] = scaled, moments
        self.in_turn = self.in_turn if step == self.step else []
        self.step = step
        self.sizes.append(len(given))
        self.in_turn.append(len(given))
        *whole, last = self.in_turn
        # A table that is cut into parts has a smaller one at its end; groups differ in size.
        self.cut |= len(whole) >= _SEVERAL and len(set(whole)) == 1 and last < whole[0]
        return any(bool(scaled.any()) for scaled in self.columns.values())

    def by(self) -> str:
        """Return along what the numbers were taken that each batch is scaled by, or nothing."""
        for by, scaled in self.columns.items():
            enough = int(scaled.sum()) >= _SEVERAL or len(self.sizes) >= _ALONE
            if len(self.sizes) >= _SEVERAL and enough and bool(scaled.any()):
                return by
        return ""


class BatchScales(Watcher):
    """
    The Probe event "batch scale": evaluations of batches that are scaled each by its own numbers.

    measured: how many batches; reference: the rows of one; step: 1 where a loader has served that
    many samples at once, so that rows are samples for sure. label: module, and by what.
    """

    makes = ("Probe:batch scale",)
    relies_on = ("Batches",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._known: dict[str, _Scaled] = {}
        self._done: set[str] = set()
        self._trained: set[str] = set()  # modules that were in their mode for training

    def install(self, patches: Patches) -> None:
        """Ask for the watcher of loaders."""
        self._batches = self.recorder.watcher(Batches)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what an evaluation is given, until a batch is not scaled by itself."""
        if forward.gradients and forward.training:
            self._trained.add(forward.module)
            return
        evaluates = not forward.gradients or forward.module in self._trained
        given = next(iter(self.recorder.given), None)
        if not evaluates or given is None or forward.module in self._done or not _is_batch(given):
            return
        known = self._known.setdefault(forward.module, _Scaled(source=caller(4)))
        known.counted += self._counts(len(given))
        if not known.add(given.detach(), forward.step):
            self.looked.add("batch scale")
            self._known.pop(forward.module)
            self._done.add(forward.module)
        elif len(known.sizes) >= _BATCHES and (known.counted or known.cut):
            self._done.add(forward.module)

    def finish(self) -> Iterable[Event]:
        """Return the modules all of whose batches are scaled by themselves."""
        for name, known in self._known.items():
            by = known.by()
            if by and (known.cut or known.counted >= _SEVERAL):
                self.looked.add("batch scale")
                yield make_probe(
                    "batch scale",
                    len(known.sizes),
                    max(known.sizes),
                    step=int(known.counted >= _SEVERAL),
                    label=f"{name} {by}",
                    source=known.source,
                )

    def _counts(self, rows: int) -> bool:
        """Say whether the latest batch of a loader has as many samples, each of them by itself."""
        served = self._batches.recent[-1] if self._batches.recent else None
        iterator = served.iterator() if served is not None else None
        sampler = getattr(iterator, "_index_sampler", None)
        if served is None or type(sampler) is not BatchSampler or sampler.batch_size != rows:
            return False
        return any(each.dim() and len(each) == rows for each in served.alive())


def _measure(given: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield by what a batch may be scaled, which columns are, and a moment of each of them."""
    wide = given.double()
    alone = bool((wide.flatten(1).mean(1).abs() < _EPSILON).all())  # each sample by itself
    for by, rows in _tables(wide):
        if alone and by != "column":
            continue
        yield by, _are_standard(rows), rows.abs().pow(3).mean(0)
        if by != "number":
            # Pictures have some black and some white in each batch, and few have one of each.
            most = _SEVERAL if by != "column" else max(_SEVERAL, _RARE * len(rows))
            yield f"range of each {by}", _fill_their_range(rows, most), rows.abs().pow(3).mean(0)


def _tables(wide: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a batch as tables, whose columns may have been scaled."""
    yield "column", wide.flatten(1)
    if wide.dim() > _SEVERAL:
        yield "channel", wide.movedim(1, -1).flatten(0, -2)
        yield "feature", wide.flatten(0, -2)
    yield "number", wide.reshape(-1, 1)


def _are_standard(rows: torch.Tensor) -> torch.Tensor:
    """Say which columns have a mean of zero and a deviation of one, but for rounding."""
    error: float = len(rows) ** -0.5
    squares = rows.square().mean(0)
    scaled = rows.mean(0).abs() < max(_ROUNDING, _NEAR * error)
    near = max(_EPSILON, _NEAR_SPREAD * error)
    unit = (squares.sqrt() - 1).abs() < near
    unit |= ((squares * len(rows) / (len(rows) - 1)).sqrt() - 1).abs() < near
    scaled &= unit
    return scaled


def _fill_their_range(rows: torch.Tensor, most_at_ends: float) -> torch.Tensor:
    """
    Say which columns go from 0 to 1, or from -1 to 1, with so many rows at the ends.

    None where most columns do not, but for marks of two values: what scales a batch scales it all.
    Nor those that are points on a circle, as hours of a day, which reach their ends by themselves.
    """
    least, most = rows.amin(0), rows.amax(0)
    ends = ((least.abs() < _ROUNDING) | ((least + 1).abs() < _ROUNDING)) & (
        (most - 1).abs() < _ROUNDING
    )
    at_ends = ((rows == least) | (rows == most)).sum(0)
    filled = ends & (at_ends <= most_at_ends)
    filled &= ~_are_on_circles(rows, filled)
    others = int(((least < most) & (at_ends < len(rows))).sum())
    return filled if 2 * int(filled.sum()) >= others else torch.zeros_like(filled)


def _are_on_circles(rows: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Say which of some columns are the sine or the cosine of an angle beside another one."""
    found, places = torch.zeros_like(among), among.nonzero().flatten()[:_PAIRED].tolist()
    squares = rows[:, places].square()
    for first, one in enumerate(places):
        sums = squares[:, first + 1 :] + squares[:, first : first + 1]
        for other in ((sums - 1).abs() < _EPSILON).all(0).nonzero().flatten().tolist():
            found[[one, places[first + 1 + other]]] = True
    return found


def _is_batch(given: torch.Tensor) -> bool:
    """Say whether an input has rows of numbers that may have been scaled, and is cheap to read."""
    plain = given.is_cpu and given.grad_fn is None and has_rows(given)
    if not plain or not given.is_floating_point() or not 1 < given.dim() < 6:
        return False
    narrow = given.dtype in (torch.float32, torch.float64)
    return narrow and len(given) >= _ROWS and given[0].numel() > 1 and given.numel() <= _LARGEST
