"""Whether chunk k+1 goes on where chunk k of its row ended, told from the values at the seam."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.observe.loader.layout import Layout, ReadBatch

_SMOOTH = 0.25  # of a signal's deviation: the largest typical step of a signal that is smooth
_JUMP = 2.0  # times the largest step inside the two chunks
_AGREE = 0.99  # of the positions, for labels that are the inputs one step later


@dataclass
class ChunkSeams:
    """The seams between the chunks of each row, counted over the epochs of one split."""

    layout: Layout
    case: int
    counts: Counter[str] = field(default_factory=Counter)
    at: dict[str, str] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)  # {a chunk's print: the next one's}
    before: "Chunk | None" = None

    def see(self, batch: ReadBatch, epoch: int, index: int) -> None:
        """Compare a batch with the one before it, row by row."""
        chunk = _chunk(batch, epoch, index)
        last, self.before = self.before, chunk
        if chunk is None or last is None or last.epoch != epoch or last.rows != chunk.rows:
            return
        if epoch == 0:
            for kind, holds in _seam(last, chunk):
                self._count(kind, holds, last, chunk)
        self._compare_followers(last, chunk)

    def events(self) -> Iterator[Event]:
        """Yield one Serving for each way to tell, with how many seams did not hold."""
        for kind in ("targets", "signal", "followers"):
            total, torn = self.counts[kind], self.counts[f"{kind} torn"]
            if total:
                yield self._serving(f"seam by {kind}", self.at.get(kind, ""), torn, total)
        # A signal that happens to be near where it was is no evidence; a target is.
        flagged, held = self.counts["targets flagged"], self.counts["targets flagged held"]
        if flagged:
            yield self._serving("reset by targets", self.at.get("targets reset", ""), held, flagged)

    def _serving(self, quantity: str, at: str, measured: int, reference: int) -> Serving:
        """Make the event of one count."""
        declared = "with resets" if self.layout.of("reset") else "without resets"
        return Serving(
            case=self.case,
            quantity=quantity,
            split=self.layout.split,
            at=at,
            measured=float(measured),
            reference=float(reference),
            detail=declared,
        )

    def _count(self, kind: str, holds: Tensor, last: "Chunk", chunk: "Chunk") -> None:
        """Count the seams between two batches, those with a declared reset apart."""
        fresh, index = chunk.fresh, chunk.index
        telling = fresh & ~_still(last)
        torn, resumed = ~holds & ~fresh, holds & telling
        self.counts[kind] += int((~fresh).sum())
        self.counts[f"{kind} torn"] += int(torn.sum())
        self.counts[f"{kind} flagged"] += int(telling.sum())
        self.counts[f"{kind} flagged held"] += int(resumed.sum())
        for name, where in ((kind, torn), (f"{kind} reset", resumed)):
            if bool(where.any()):
                row = int(where.int().argmax())
                self.at.setdefault(name, f"row {row}, batch {index - 1} to {index}")

    def _compare_followers(self, last: "Chunk", chunk: "Chunk") -> None:
        """Compare what follows each chunk with what followed it in the first epoch."""
        for row, (one, next_) in enumerate(zip(last.prints, chunk.prints, strict=True)):
            if bool(chunk.fresh[row]):
                continue
            if chunk.epoch == 0:
                # A chunk that occurs twice, such as silence, tells nothing.
                self.after[one] = 0 if one in self.after else next_
            elif self.after.get(one):
                self.counts["followers"] += 1
                if self.after[one] != next_:
                    self.counts["followers torn"] += 1
                    place = f"row {row}, batch {last.index} to {chunk.index}"
                    self.at.setdefault("followers", place)


@dataclass
class Chunk:
    """What is kept of a batch: its inputs and targets along the sequence, and where it is reset."""

    epoch: int
    index: int
    inputs: Tensor
    targets: Tensor | None
    prints: tuple[int, ...]
    fresh: Tensor

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.prints)


def _chunk(batch: ReadBatch, epoch: int, index: int) -> Chunk | None:
    """Return what is needed of a batch, or None where it has no sequence."""
    inputs = next(_sequences(batch, "input"), None)
    if inputs is None or len(batch.prints) != len(inputs):
        return None
    shape = inputs.shape[:2]
    targets = next((t for t in _sequences(batch, "label") if t.shape[:2] == shape), None)
    return Chunk(epoch, index, inputs, targets, batch.prints, _fresh(batch, len(inputs)))


def _sequences(batch: ReadBatch, role: str) -> Iterator[Tensor]:
    """Yield the fields of a role that have a sequence, as [rows, sequence, ...]."""
    for name in batch.layout.of(role):
        value = batch.fields.get(name)
        if isinstance(value, Tensor) and value.ndim > 1:
            axis = batch.layout.sequence(name, value)
            if axis is not None and value.shape[axis] > 1:
                yield value.movedim(axis, 1).clone()  # the loader may reuse its buffer


def _fresh(batch: ReadBatch, rows: int) -> Tensor:
    """Return for each row whether the declared field says that it begins anew."""
    fresh = torch.zeros(rows, dtype=torch.bool)
    for name in batch.layout.of("reset"):
        value: Any = batch.fields.get(name)
        if isinstance(value, bool | int | float):
            value = torch.tensor(value)
        if isinstance(value, Tensor) and value.numel():
            first = value.reshape(len(value), -1)[:, 0] if value.ndim > 1 else value
            fresh |= (first != 0).expand(rows) if first.numel() in (1, rows) else fresh
    return fresh


def _seam(last: Chunk, chunk: Chunk) -> Iterator[tuple[str, Tensor]]:
    """Yield for each row whether a chunk goes on where the last ended, in each way to tell."""
    if last.targets is not None and _is_shifted(last):
        yield "targets", (last.targets[:, -1] == chunk.inputs[:, 0]).reshape(chunk.rows, -1).all(1)
    elif chunk.inputs.is_floating_point():
        smooth = _smooth(last, chunk)
        if smooth is not None:
            yield "signal", smooth


def _still(last: Chunk) -> Tensor:
    """Return whether a chunk ends in one repeated target, such as silence that goes on."""
    if last.targets is None or last.targets.shape[1] < 2:
        return torch.zeros(last.rows, dtype=torch.bool)
    same: Tensor = last.targets[:, -1] == last.targets[:, -2]
    return same.reshape(last.rows, -1).all(1)


def _is_shifted(chunk: Chunk) -> bool:
    """Say whether the targets are the inputs one step later."""
    assert chunk.targets is not None
    if chunk.targets.shape != chunk.inputs.shape or chunk.targets.dtype != chunk.inputs.dtype:
        return False
    same = chunk.targets[:, :-1] == chunk.inputs[:, 1:]
    return float(same.float().mean()) >= _AGREE


def _smooth(last: Chunk, chunk: Chunk) -> Tensor | None:
    """Return whether the step over each row's seam is like others; None for a rough signal."""
    one, two = last.inputs.double(), chunk.inputs.double()
    one, two = one.reshape(*one.shape[:2], -1), two.reshape(*two.shape[:2], -1)
    if one.shape[2] != two.shape[2] or not bool(
        torch.isfinite(two).all() & torch.isfinite(one).all()
    ):
        return None
    steps = torch.cat([one.diff(dim=1), two.diff(dim=1)], 1).square().mean(2).sqrt()
    deviation = torch.cat([one, two], 1).std()
    if not 0 < float(steps.square().mean().sqrt()) < _SMOOTH * float(deviation):
        return None
    seam = (two[:, 0] - one[:, -1]).square().mean(1).sqrt()
    return seam <= _JUMP * steps.amax(1)
