"""The values of each field, added up while the batches pass: what is not finite, range, size."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite, nan, sqrt
from typing import Any

import numpy as np
import torch

from trainguard.events.base import Event
from trainguard.events.loader import Field
from trainguard.observe.loader.layout import Layout, ReadBatch
from trainguard.observe.tools.arrays import array_of
from trainguard.subjects.domain import Domain

_SMALL = 2**16  # elements of which all are looked at for their range
_SAMPLED = 2**12
_FIRST, _EVERY = 32, 16  # of many batches, some say enough about the size of the values
Ends = tuple[float, float]
IGNORED = -100  # the label that torch's losses leave out


@dataclass
class Values:
    """The tallies of all fields of a split."""

    layout: Layout
    case: int
    tallies: dict[str, "FieldTally"] = field(default_factory=dict)

    def see(self, batch: ReadBatch, epoch: int, index: int) -> None:
        """Add up the values of a batch; after the first epoch, look at some of them only."""
        if epoch and not _is_looked_at(index):
            return
        for name, value in batch.fields.items():
            number = _numbers(value)
            if number is None or not number.numel():
                continue
            if (tally := self.tallies.get(name)) is None:
                domain, role = self.layout.domains.get(name), self.layout.roles.get(name, "input")
                tally = self.tallies[name] = FieldTally(domain, role)
            if epoch == 0:
                ends = _ends(number, batch.array(name)) if tally.has_range else None
                tally.check(number, epoch, index, ends)
                tally.add(number, index, ends)
            elif not _is_finite(_some(number)):
                tally.check(number, epoch, index)

    def events(self) -> Iterator[Event]:
        """Yield a Field for each field of numbers."""
        for name, tally in self.tallies.items():
            yield tally.event(self.case, self.layout.split, name)


@dataclass
class FieldTally:
    """What is added up over one field."""

    domain: Domain | None
    role: str
    dtype: str = ""
    count: int = 0
    bad: int = 0
    at: str = ""
    low: float = inf
    high: float = -inf
    sampled: int = 0
    total: float = 0.0
    squares: float = 0.0
    zeros: int = 0
    whole: bool = True
    outside: int = 0
    first: float = nan

    @property
    def has_range(self) -> bool:
        """Whether a range was declared that every value is held against."""
        return self.domain is not None and self.domain.kind in ("real", "integer", "bins")

    def check(self, value: torch.Tensor, epoch: int, index: int, ends: Ends | None = None) -> None:
        """Count what is not finite; neither end is where a value is not."""
        self.count += value.numel()
        if _is_finite(value) if ends is None else all(map(isfinite, ends)):
            return
        bad = ~torch.isfinite(value)
        found = int(bad.sum())
        if found and not self.bad:
            row = int(bad.reshape(len(bad), -1).any(1).int().argmax()) if bad.ndim else 0
            self.at = f"epoch {epoch}, batch {index}, sample {row}"
        self.bad += found

    def add(self, value: torch.Tensor, index: int, ends: Ends | None = None) -> None:
        """Add up the range and the size of the finite values."""
        self.dtype = self.dtype or str(value.dtype).removeprefix("torch.")
        if ends is not None:
            self._outside(value, index, ends)
        if not _is_looked_at(index):
            return
        known = self.domain is None or (ends is not None and all(map(isfinite, ends)))
        part = (_some(value, _SMALL) if known else value).contiguous()  # looked at several times
        if part.is_floating_point():
            part = part[torch.isfinite(part)] if self.bad else part
        if not part.numel():
            return
        part = part.int() if part.dtype == torch.bool else part
        low, high = torch.aminmax(part)
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self._size(part)

    def _size(self, part: torch.Tensor) -> None:
        """Add up sums and squares of some of the values."""
        flat = array_of(_some(part).double())
        self.sampled += flat.size
        self.total += float(flat.sum())
        self.squares += float(flat.dot(flat))
        self.zeros += flat.size - int(np.count_nonzero(flat))
        self.whole = self.whole and bool((flat == np.rint(flat)).all())

    def _outside(self, value: torch.Tensor, index: int, ends: Ends) -> None:
        """Count the finite values outside the declared range; rounding is allowed for."""
        assert self.domain is not None
        low, high = float(self.domain.low), float(self.domain.high)
        near = 1e-6 * max(abs(low), abs(high)) if value.is_floating_point() else 0.0
        lowest, highest = ends
        if isfinite(lowest) and isfinite(highest):
            self.low, self.high = min(self.low, lowest), max(self.high, highest)
        if lowest >= low - near and highest <= high + near:
            return
        out = torch.isfinite(value) & ((value < low - near) | (value > high + near))
        if self.role == "label" and not value.is_floating_point():
            out &= value != IGNORED
        found = int(out.sum())
        if found and not self.outside:
            row = int(out.reshape(len(out), -1).any(1).int().argmax()) if out.ndim else 0
            self.at = self.at or f"epoch 0, batch {index}, sample {row}"
            self.first = float(value[out].reshape(-1)[0])
        self.outside += found

    def event(self, case: int, split: str, name: str) -> Field:
        """Return what was added up."""
        mean = self.total / self.sampled if self.sampled else nan
        spread = self.squares / self.sampled - mean**2 if self.sampled else nan
        # Zeros and minus infinities alone are a mask that is added to attention scores.
        added = self.bad and self.low == self.high == 0.0
        return Field(
            case=case,
            split=split,
            field=name,
            dtype=self.dtype,
            role=self.role,
            count=self.count,
            bad=0 if added else self.bad,
            at=self.at,
            low=self.low if self.sampled else nan,
            high=self.high if self.sampled else nan,
            mean=mean,
            deviation=sqrt(max(0.0, spread)) if isfinite(spread) else nan,
            zeros=round(self.zeros / self.sampled * self.count) if self.sampled else 0,
            whole=self.whole and self.sampled > 0,
            outside=self.outside,
            first=self.first,
        )


def _ends(value: torch.Tensor, array: np.ndarray[Any, Any] | None) -> Ends:
    """Return the lowest and the highest element; nan where one is nan."""
    if array is not None and array.dtype.kind in "fiu" and array.itemsize != 2:
        return float(array.min()), float(array.max())  # several times as fast as torch.aminmax
    low, high = torch.aminmax(value.int() if value.dtype == torch.bool else value)
    return float(low), float(high)


def _is_looked_at(index: int) -> bool:
    """Say whether a batch is one of those from which the size of the values is told."""
    return index < _FIRST or not index % _EVERY


def _is_finite(value: torch.Tensor) -> bool:
    """Say whether the sum of a tensor is finite, which one with a value that is not never is."""
    if not value.is_floating_point():
        return True
    wide = torch.float32 if value.element_size() < 4 else value.dtype
    return isfinite(float(value.sum(dtype=wide)))


def _some(value: torch.Tensor, most: int = 0) -> torch.Tensor:
    """Return some thousand elements spread over a tensor; all where there are at most so many."""
    flat = value.reshape(-1)
    return flat if len(flat) <= most else flat[:: max(1, len(flat) // _SAMPLED)]


def _numbers(value: Any) -> torch.Tensor | None:
    """Return the numbers of a field as one tensor, also of a list of tensors; None for others."""
    if isinstance(value, list | tuple) and value:
        parts = [v.detach().reshape(-1) for v in value if isinstance(v, torch.Tensor)]
        same = len({part.dtype for part in parts}) == 1
        value = torch.cat(parts) if len(parts) == len(value) and same else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    value = value.cpu()
    return torch.view_as_real(value) if value.is_complex() else value
