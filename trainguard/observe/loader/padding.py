"""How much of the batches is padding, and whether the mask tells it from what is not."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.observe.loader.layout import SEQUENCE, Layout, ReadBatch
from trainguard.observe.tools.arrays import array_of

_COLUMNS = 8  # of many features, so many tell positions apart
_KNOWN = "attention_mask"  # everywhere: nonzero is kept; other names mean both


@dataclass
class PaddingWatcher:
    """What the masks and the ends of the rows of one split say about padding."""

    layout: Layout
    case: int
    counts: Counter[str] = field(default_factory=Counter)
    at: dict[str, str] = field(default_factory=dict)
    ends: Counter[int] = field(default_factory=Counter)
    inside: set[int] = field(default_factory=set)
    rows: int = 0

    def see(self, batch: ReadBatch, epoch: int, index: int) -> None:
        """Look at the sequences of one batch of the first epoch."""
        if epoch:
            return
        masks = {n: batch.fields.get(n) for n in self.layout.of("mask")}
        for name in self.layout.of("input"):
            if (axis := _axis(batch, name)) is None:
                continue
            value: Tensor = batch.fields[name]
            size = (value.shape[0], value.shape[axis])
            kept = (self._find_kept(mask, held, size) for mask, held in masks.items())
            keep = next((found for found in kept if found is not None), None)
            if keep is not None:
                rows = _rows(value, axis)
                self._count_masked(rows, keep, index, spare=_has_targets(batch, rows))
                return
            domain = self.layout.domains.get(name)
            if domain is not None and SEQUENCE in (domain.shape or ()):
                self._count_unmasked(value, batch.array(name), axis, index)
                return

    def events(self) -> Iterator[Event]:
        """Yield the share of padding, and what the mask and the values disagree about."""
        counts = self.counts
        if counts["positions"]:
            hidden, total = counts["padded"], counts["positions"]
            reverse = counts["inverted"] > 0.5 * counts["inverted of"]
            padded = total - hidden if reverse else hidden
            yield self._serving("padding", padded, total, "by the mask")
        elif counts["ended"]:
            yield self._serving("padding", counts["ends"], counts["ended"], "by equal ends of rows")
        for kind in ("inverted", "cut"):
            if counts[f"{kind} of"]:
                yield self._serving(kind, counts[kind], counts[f"{kind} of"], self._by())
        yield from self._uncovered_events()

    def _by(self) -> str:
        """Say whether the mask was declared."""
        declared = any(domain.kind == "mask" for domain in self.layout.domains.values())
        return "declared" if declared else "found"

    def _serving(self, quantity: str, measured: int, reference: int, detail: str) -> Serving:
        """Make the event of one count."""
        return Serving(
            case=self.case,
            quantity=quantity,
            split=self.layout.split,
            at=self.at.get(quantity, ""),
            measured=float(measured),
            reference=float(reference),
            detail=detail,
        )

    def _find_kept(self, name: str, mask: Any, size: tuple[int, int]) -> Tensor | None:
        """Return which positions a mask keeps; None where it is not one over these positions."""
        if not isinstance(mask, Tensor) or mask.shape != size:
            return None
        domain = self.layout.domains.get(name)
        if domain is not None and domain.kind == "mask":
            return torch.ne(mask, _number(domain.values[1]))
        if name.rpartition(".")[2].lower() == _KNOWN:
            return mask != 0
        return None

    def _count_masked(self, rows: Tensor, keep: Tensor, index: int, *, spare: int) -> None:
        """
        Count padding by the mask, and rows in which it hides content or shows padding.

        spare: how many positions with content a mask may hide.
        """
        self.counts["positions"] += keep.numel()
        for row, (values, kept) in enumerate(zip(rows, keep, strict=True)):
            where = f"batch {index}, sample {row}"
            hidden, shown = values[~kept], values[kept]
            inverted = False
            if len(hidden) > 1:
                equal = _equal_share(hidden)
                held = round((1 - equal) * len(hidden)) <= spare
                inverted = equal < 0.5 and _is_constant(shown)
                self._count("cut", not held and equal >= 0.5, where)
                self._count("inverted", inverted, where)
            self.counts["padded"] += len(hidden)
            if not inverted:
                self._count_end(values, kept, where)

    def _count_end(self, values: Tensor, kept: Tensor, where: str) -> None:
        """Count a row that ends in one repeated value, all of it kept; note what else it holds."""
        if values.is_floating_point() or values.shape[1] > 1:
            return
        run = _end_run(values)
        if run < len(values):
            self.inside.update(values[: len(values) - run, 0].tolist())
            self.rows += 1
            if run > 2 and bool(kept[len(values) - run + 1 :].all()):
                self.ends[int(values[-1])] += 1
                self.at.setdefault(f"end {int(values[-1])}", where)

    def _uncovered_events(self) -> Iterator[Event]:
        """Yield how many rows end in a value that the mask keeps, and no row holds elsewhere."""
        padding = [(count, end) for end, count in self.ends.items() if end not in self.inside]
        if padding:
            count, end = max(padding)
            self.at["uncovered"] = self.at[f"end {end}"]
            yield self._serving("uncovered", count, self.rows, self._by())

    def _count_unmasked(self, value: Tensor, array: Any, axis: int, index: int) -> None:
        """Count the equal ends of rows as padding, where there is no mask."""
        self.counts["ended"] += value.shape[0] * value.shape[axis]
        ends = _ends(value, array, axis)
        ended = (ends == ends[0, -1]).all((1, 2))
        for row in ended.nonzero()[0].tolist():
            self.counts["ends"] += _end_run(_rows(value, axis)[row])
            self.at.setdefault("padding", f"batch {index}, sample {row}")

    def _count(self, kind: str, found: bool, where: str) -> None:
        """Count a row as one of a kind, or as one that could have been."""
        self.counts[f"{kind} of"] += 1
        if found:
            self.counts[kind] += 1
            self.at.setdefault(kind, where)


def _number(value: object) -> float:
    """Return what marks padding as a number."""
    return float(value) if isinstance(value, bool | int | float) else 0.0


def _axis(batch: ReadBatch, name: str) -> int | None:
    """Return the sequence axis of a field that has one, and something in it."""
    value = batch.fields.get(name)
    if not isinstance(value, Tensor) or value.ndim < 2 or value.layout != torch.strided:
        return None
    return batch.layout.sequence(name, value) if value.numel() else None


def _rows(value: Tensor, axis: int) -> Tensor:
    """Return a field with a sequence as [rows, sequence, features]."""
    moved = value.movedim(axis, 1)
    return moved.reshape(*moved.shape[:2], -1)


def _ends(value: Tensor, array: Any, axis: int) -> Any:
    """Return the last two positions of all rows, as an array [rows, 2, features]."""
    if array is not None:
        few = np.swapaxes(array, axis, 1)[:, -2:]
    else:
        few = value.swapaxes(axis, 1)[:, -2:].cpu().resolve_conj().resolve_neg()
        few = array_of(few.float() if few.is_floating_point() else few)  # NumPy lacks bfloat16
    # Copied once: at such a distance in memory, each look at them is a way to the main memory.
    return np.ascontiguousarray(few).reshape(*few.shape[:2], -1)


def _has_targets(batch: ReadBatch, rows: Tensor) -> int:
    """Say whether there are targets by position: a mask of those hides one input more."""
    values = [batch.fields.get(name) for name in batch.layout.of("label")]
    return int(any(isinstance(v, Tensor) and v.shape[:2] == rows.shape[:2] for v in values))


def _is_constant(values: Tensor) -> bool:
    """Say whether all positions hold the same."""
    return len(values) > 1 and bool((values == values[0]).all())


def _equal_share(values: Tensor) -> float:
    """Return the share of the positions that hold what most of them hold."""
    usual = values[:, :_COLUMNS].mode(0).values
    return float((values[:, :_COLUMNS] == usual).all(1).float().mean())


def _end_run(values: Tensor) -> int:
    """Return how many positions at the end hold the same as the last."""
    other = (values != values[-1]).any(1).nonzero()
    return len(values) - 1 - int(other[-1]) if len(other) else len(values)
