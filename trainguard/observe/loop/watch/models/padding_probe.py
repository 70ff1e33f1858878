"""Watches for padding that speaks: what is said of a sample depends on how much of it there is."""

from typing import Any, ClassVar

import torch
from torch import nn

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.row_ends import are_told, ends_of, find_padding
from trainguard.observe.loop.watch.models.mixing_probe import counts_time_first
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows

_LEAST_ROWS = 4  # of which padding can be cut
_PART = 4  # of the samples, one in so many
_SHORTEST = 4  # places of a row
_LARGEST = 2**22  # elements of what is read
_LATE = 100  # steps after which a model may have learned to pass over padding
_FEW = 3  # lengths of an axis; that of samples has two, where the last batch is smaller
_WHOLE = (torch.int64, torch.int32)
_TOLD = "padding cut told"


class PaddingProbe(ModuleProbe):
    """
    The Probe event "padding cut": padding is cut off the samples that have the most of it.

    Only where an input is a table of tokens, or of rows of features, whose rows end in padding of
    different lengths, and where an output has one row for each sample. Measured is the change of
    the typical sample, in deviations of the outputs of all samples.
    """

    makes: ClassVar[tuple[str, ...]] = ("Probe:padding cut",)
    relies_on: ClassVar[tuple[str, ...]] = ("Forwards",)

    probe = "padding cut"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._ends = torch.empty(0)  # how much padding each sample has
        self._shape = torch.Size()  # of the two first axes of what is padded
        self._axis = 0  # that of the samples among them

    def fits(self, call: CopyableCall) -> bool:
        """Say whether an input has rows that end in padding."""
        axes = (0, 1) if counts_time_first(call.module) else (0,)
        for tensor in tensors_in(call.inputs):
            for axis in axes if tensor.dim() > 1 and tensor.shape[0] != tensor.shape[1] else ():
                ends = _padding_of(tensor.detach().transpose(0, axis))
                if ends is not None and int((ends > 0).sum()) >= max(
                    _LEAST_ROWS, len(ends) // _PART
                ):
                    self._ends, self._shape, self._axis = ends, tensor.shape[:2], axis
                    return True
        return False

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Cut the padding that a few of the samples have in common, and see how they change."""
        longest = self._ends.sort(descending=True).values
        cut = int(longest[max(_LEAST_ROWS, len(longest) // _PART) - 1])
        rows = torch.nonzero(self._ends >= cut).flatten()
        every = self._rows_of(run(call.inputs), len(self._ends))
        given = self._cut(call.inputs, rows, 0)
        whole, again = (self._rows_of(run(given), len(rows)) for _ in range(2))
        edited = self._rows_of(run(self._cut(call.inputs, rows, cut)), len(rows))
        if None in (every, whole, again, edited) or whole.shape != edited.shape:
            return None
        spread = float(every.std(0).norm())
        if not spread > self.reference(call, every) >= difference([whole], [again]):
            return None
        return Seen(float((edited - whole).norm(dim=1).median()) / spread, float(cut))

    def _cut(self, entry: Any, rows: torch.Tensor, places: int) -> Any:
        """Return some samples of an input, without so many of their last places."""
        if isinstance(entry, dict):
            return {key: self._cut(value, rows, places) for key, value in entry.items()}
        if isinstance(entry, list | tuple):
            return type(entry)(self._cut(value, rows, places) for value in entry)
        if not isinstance(entry, torch.Tensor) or not entry.dim():
            return entry
        samples, time = self._shape[self._axis], self._shape[1 - self._axis]
        if entry.shape[:2] == self._shape:
            chosen = entry.index_select(self._axis, rows.to(entry.device))
            pairs = entry.shape[2:] == (time,) and not self._has_features(entry)
            cut = chosen.narrow(1 - self._axis, 0, time - places)
            return cut.narrow(2, 0, time - places) if pairs else cut
        if entry.shape == (time, time) and time != samples:
            return entry[: time - places, : time - places]
        return entry.index_select(0, rows.to(entry.device)) if len(entry) == samples else entry

    def _has_features(self, entry: torch.Tensor) -> bool:
        """Say whether the last axis of an input is one of features, and no second one of places."""
        if entry.dim() > 3 or not entry.is_floating_point():
            return False
        there = (entry.detach() != 0).transpose(0, self._axis)
        beyond = torch.arange(entry.shape[2]) >= entry.shape[2] - self._ends[:, None]
        return bool((there.any(1) & beyond).any())

    def _rows_of(self, outputs: list[torch.Tensor], samples: int) -> Any:
        """Return the first output that has a row for each sample, and no axis of time."""
        able = (t for t in outputs if t.dim() in (1, 2) and len(t) == samples and t.numel())
        return next((t.detach().float().reshape(samples, -1) for t in able), None)


class LatePaddingProbe(PaddingProbe):
    """
    The Probe event "padding cut late": the same, once a model has learned for a while.

    "padding cut told" where lengths or a mask of the padding came with the batch.

    Only where batches have been padded to different lengths: else each sample has its own amount
    of padding for good, and what is made of that is made of the sample.
    """

    makes = ("Probe:padding cut late", f"Probe:{_TOLD}")
    relies_on = ("Forwards", "Batches")
    probe = "padding cut late"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lengths: tuple[set[int], set[int]] = set(), set()  # of the first two axes
        self._is_told = False  # whether lengths, or a mask, are given beside the rows

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down how long the rows of a batch are, and remember a pass that is late enough."""
        if not self.is_wanted or not forward.gradients:
            return
        for tensor in filter(has_rows, self.recorder.given[:1]):
            for known, length in zip(self._lengths, tensor.shape, strict=False):
                known |= {length} if len(known) < _FEW else set()
        if self.recorder.steps >= _LATE and max(map(len, self._lengths)) >= _FEW:
            super().forward(forward, module, inputs, output)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether rows end in padding, and were of different lengths, not batches alone."""
        if not super().fits(call) or len(self._lengths[1 - self._axis]) < _FEW:
            return False
        beside = self.recorder.watcher(Batches).latest()
        width = self._shape[1 - self._axis]
        self._is_told = are_told(self._ends, width, [*tensors_in(call.inputs), *beside])
        return True

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Cut the padding, and say whether the model could have known of it."""
        seen = super().look(call, run)
        return seen._replace(probe=_TOLD) if seen and self._is_told else seen


def _padding_of(rows: torch.Tensor) -> torch.Tensor | None:
    """Return how much padding each row ends with; None where that is not known, or the same."""
    if not rows.is_cpu or rows.shape[1] < _SHORTEST or rows.numel() > _LARGEST:
        return None
    if rows.dim() == 2 and rows.dtype in _WHOLE and int(rows.max() - rows.min()) > 1:  # no mask
        return ends_of(rows, find_padding(rows))
    if rows.dim() == 3 and rows.is_floating_point():
        return ends_of((rows != 0).any(-1).int(), 0)
    return None
