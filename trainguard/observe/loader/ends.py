"""Where the rows of a field end, without what fills them up to the longest of their batch."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

_SHORT = 3  # dimensions; of more, the sequence is the axis whose size is seen to change
_USUAL = 3  # of the positions with which rows end
_SURE = 4  # positions that are filled up, of a row each two or more: words are said twice, too


@dataclass
class Ends:
    """
    The padding of one field, of which a row has as much as the longest of its batch asks for.

    axis: the sequence, where it is declared or was seen to change its size from batch to batch.
    filler: the bytes of the position that fills rows up; zeros until another one is seen to do so.
    changed: whether either was learned after a batch was read without it.
    """

    axis: int | None = None
    filler: bytes = b""
    changed: bool = False
    shape: tuple[int, ...] = ()
    batches: int = 0

    def trim(self, rows: Any) -> tuple[Any, list[int]]:
        """
        Return rows with the sequence as their second axis, and how many bytes of each are its own.

        rows: an array of numbers with the samples along the first axis. The second is empty where
        no row ends with what fills others up.
        """
        self._learn_axis(rows.shape)
        axis = self.axis or (1 if 2 <= rows.ndim <= _SHORT else None)
        self.batches += 1
        if axis is None or axis >= rows.ndim or not rows.size:
            return rows, []
        rows = np.ascontiguousarray(rows.swapaxes(axis, 1) if axis > 1 else rows)
        places = rows.view(np.uint8).reshape(*rows.shape[:2], -1)
        filler = self._learn_filler(places)
        kept = _own(places, np.frombuffer(filler, np.uint8))
        if (kept == places.shape[1]).all():
            return rows, []
        return rows, (kept * places.shape[2]).tolist()

    def _learn_axis(self, shape: tuple[int, ...]) -> None:
        """Take the only axis for the sequence whose size differs from that of the last batch."""
        if self.axis is None and len(self.shape) == len(shape):
            other = [i for i in range(1, len(shape)) if shape[i] != self.shape[i]]
            if len(other) == 1:
                self.axis = other[0]
                self.changed |= len(shape) > _SHORT or self.axis > 1
        self.shape = shape

    def _learn_filler(self, places: Any) -> bytes:
        """Return what fills rows up: that with which several end, often and after many lengths."""
        zeros = bytes(places.shape[2])
        if self.filler and len(self.filler) == len(zeros):
            return self.filler
        last = places[:, -1].copy().view(f"V{len(zeros)}").ravel()
        ends: Counter[bytes] = Counter(last.tolist())
        for usual in [end for end, times in ends.most_common(_USUAL) if times > 1]:
            filled = places.shape[1] - _own(places, np.frombuffer(usual, np.uint8))
            if len({*filled.tolist()} - {0}) > 1 and filled.sum() >= max(_SURE, len(places) / 2):
                self.filler = usual
                self.changed |= usual != zeros and self.batches > 1
                return usual
        return zeros


def _own(places: Any, filler: Any) -> Any:
    """Return after how many positions each row holds nothing but what fills it up."""
    kept = np.full(len(places), places.shape[1])
    ending = (places[:, -1] == filler).all(1).nonzero()[0]
    if len(ending):
        other = (places[ending] != filler).any(2)[:, ::-1]
        kept[ending] = np.where(other.any(1), places.shape[1] - other.argmax(1), 0)
    return kept
