"""Watches for samples that mix: the output for one depends on the others of its batch."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils import data

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.module_copy import CopyableCall, Run, difference
from trainguard.observe.loop.watch.probe import ModuleProbe, Seen, steady
from trainguard.observe.loop.watch.watcher import shielded
from trainguard.observe.tools.patches import Patches

_LEAST_ROWS = 4
_PERVASIVE = 0.9  # of the samples; experts that are full drop a few
PLAIN = (bool, int, float, str, type(None))
_RANDOM = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 what all of them derive from


class MixingProbe(ModuleProbe):
    """
    The Probe event "mix": every other sample is exchanged for one of the rest, which must not care.

    Only where rows are samples for sure: the batch comes from a loader that shuffles single samples
    and puts them together itself. A batch norm without running statistics mixes on purpose; a table
    of all pairs of samples, as contrastive models return, is no output of one sample.
    """

    makes = ("Probe:mix",)
    relies_on = ("Forwards",)

    probe = "mix"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._batch: list[torch.Tensor] = []  # that a loader handed out last

    def install(self, patches: Patches) -> None:
        """Be told of what loaders hand out."""
        if self.is_wanted:
            iterator = getattr(data.dataloader, "_BaseDataLoaderIter", None)
            patches.replace(iterator, "__next__", self._next)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether all inputs have as many rows, which are samples, one for each sample."""
        batch, self._batch = self._batch, []
        tensors = [entry for entry in call.inputs if isinstance(entry, torch.Tensor)]
        plain = all(isinstance(entry, (torch.Tensor, *PLAIN)) for entry in call.inputs)
        if not plain or not tensors or not all(tensor.dim() for tensor in tensors):
            return False
        rows = {len(tensor) for tensor in tensors}
        if len(rows) > 1 or min(rows) < _LEAST_ROWS or _mixes_on_purpose(call.module):
            return False
        return any(_same(tensors[0], loaded) for loaded in batch)

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Exchange every other sample, and see how much the outputs for the rest change."""
        rows = next(len(entry) for entry in call.inputs if isinstance(entry, torch.Tensor))
        first = _others(run(call.inputs), rows)
        if first is None:
            return None
        reference = self.reference(call, first)
        if not steady(first, _others(run(call.inputs), rows), reference):
            return None
        after = _others(run(tuple(_edit(entry) for entry in call.inputs)), rows)
        if after is None or after.shape != first.shape:
            return None
        each = [difference([a], [b]) for a, b in zip(after, first, strict=True)]
        typical = sorted(each, reverse=True)[int(_PERVASIVE * len(each)) - 1]
        return Seen(typical, reference) if typical > reference else None

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `__next__` of loaders that remembers the batch while it is wanted."""

        @wraps(original)
        def wrapper(iterator: Any) -> Any:
            """Return the next batch."""
            batch = original(iterator)
            self._remember(iterator, batch)
            return batch

        return wrapper

    @shielded
    def _remember(self, iterator: Any, batch: Any) -> None:
        """Remember a batch while it is wanted."""
        if self.is_wanted and self.recorder.patches.live and _shuffles(iterator):
            self._batch = list(tensors_in(batch))[:16]
        elif self._batch:
            self._batch = []


def draws_samples(iterator: Any) -> data.BatchSampler | None:
    """Return by what a loader draws the samples of a batch, if each of them is drawn at random."""
    batches = getattr(iterator, "_index_sampler", None)
    own = type(batches) is data.BatchSampler and isinstance(batches.sampler, _RANDOM)
    return batches if own else None


def _shuffles(iterator: Any) -> bool:
    """Say whether a loader draws single samples at random and puts them together itself."""
    own = draws_samples(iterator) is not None
    return own and getattr(iterator, "_collate_fn", None) is data.default_collate


def _same(given: torch.Tensor, loaded: torch.Tensor) -> bool:
    """Say whether a tensor is what was loaded: moved, cast or with its rows in another shape."""
    if given is loaded:
        return True
    if given.dim() == 0 or loaded.dim() == 0 or len(given) != len(loaded):
        return False
    rows, own = given.detach().reshape(len(given), -1), loaded.reshape(len(loaded), -1)
    return rows.shape == own.shape and torch.equal(rows.cpu(), own.cpu().to(rows.dtype))


def _edit(entry: Any) -> Any:
    """Return an input with its rows 0, 2, 4, ... exchanged for row 1."""
    if not isinstance(entry, torch.Tensor):
        return entry
    edited = entry.detach().clone()
    edited[::2] = entry.detach()[1]
    return edited


def _others(output: list[torch.Tensor], rows: int) -> torch.Tensor | None:
    """
    Return the rows 1, 3, 5, ... of an output, whose samples stay as they are.

    It is the first tensor with one row for each sample, and none for each pair of them.
    """
    able = (t for t in output if t.dim() and len(t) == rows and rows not in t.shape[1:])
    return next((tensor[1::2].clone() for tensor in able if tensor.numel()), None)


def _mixes_on_purpose(module: nn.Module) -> bool:
    """Say whether a module normalises with the statistics of the batch in evaluation mode too."""
    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORM)]
    return any(norm.running_mean is None for norm in norms)
