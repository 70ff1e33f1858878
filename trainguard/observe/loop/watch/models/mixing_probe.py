"""Watches for samples that mix: the output for one depends on the others of its batch."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import data

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen, steady
from trainguard.observe.loop.watch.samples.row_order import tells_an_order
from trainguard.observe.loop.watch.watcher import shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.patches import Patches, tell_after

_LEAST_ROWS = 4
_TABLES = 4  # of the user's variables, each with the indices
_TENSORS = 16  # of a batch
_NUMBERS = 16  # of a row: shorter ones are alike by chance
_ROWS, _COLUMNS = 64, 4096  # of them, that are compared
_ALIKE = 0.5  # correlation of a sample with what an augmentation has left of it
_PERVASIVE = 0.9  # of the samples; experts that are full drop a few
PLAIN = (bool, int, float, str, type(None))
RANDOM = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
_SEQUENCE_LAYERS = (nn.RNNBase, nn.MultiheadAttention)
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 what all of them derive from


class MixingProbe(ModuleProbe):
    """
    The Probe event "mix": every other sample is exchanged for one of the rest, which must not care.

    Only where rows are samples for sure: the batch comes from a loader that shuffles single samples
    and puts them together itself, or by a function of the user's that returns nothing but as many
    rows as it is given samples; or it is a table of the user's at indices in no order. What was
    made of such a batch counts too, where its rows are still like those. Or, as "mix along time",
    where a layer that takes time along the first axis is given one like the input. A batch norm
    without running statistics mixes on purpose; a table of all pairs of samples, as contrastive
    models return, is no output of one.
    """

    makes = ("Probe:mix", "Probe:mix along time")
    relies_on = ("Forwards",)

    probe = "mix"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._batch: list[torch.Tensor] = []  # that a loader handed out last
        self._axis = 0  # of samples, in the call that is looked at

    def install(self, patches: Patches) -> None:
        """Be told of what loaders hand out."""
        if self.is_wanted:
            iterator = getattr(data.dataloader, "_BaseDataLoaderIter", None)
            patches.replace(iterator, "__next__", tell_after(self._remember))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the pass, where its rows come out in the order that they were given in."""
        if self.is_wanted and not tells_an_order(output):
            super().forward(forward, module, inputs, output)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether all inputs have as many samples, along the axis that is that of samples."""
        batch, self._batch = self._batch, []
        tensors = [entry for entry in call.inputs if isinstance(entry, torch.Tensor)]
        plain = all(isinstance(entry, (torch.Tensor, *PLAIN)) for entry in call.inputs)
        if not plain or not tensors or not all(tensor.dim() for tensor in tensors):
            return False
        loaded = any(_same(tensors[0], each) for each in batch)
        drawn = 0 if loaded else _find_drawn(tensors)
        if drawn is None and not (counts_time_first(call.module) and _is_sequence(tensors)):
            return False
        self._axis = 1 if drawn is None else drawn
        self.probe = "mix" if drawn is not None else "mix along time"
        rows = {tensor.shape[self._axis] for tensor in tensors}
        return len(rows) == 1 and min(rows) >= _LEAST_ROWS and not _mixes_on_purpose(call.module)

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Exchange every other sample, and see how much the outputs for the rest change."""
        shape = next(entry.shape for entry in call.inputs if isinstance(entry, torch.Tensor))
        axis = self._axis
        sure = self.probe == "mix"
        with _watch_sequences(shape[:2]) as sequences:
            first = _others(run(call.inputs), shape, axis, sure=sure)
        if not sure and not sequences:
            return None
        again = _others(run(call.inputs), shape, axis, sure=sure)
        changed = tuple(_edit(entry, axis) for entry in call.inputs)
        after = _others(run(changed), shape, axis, sure=sure)
        if not [t.shape for t in first] == [t.shape for t in again] == [t.shape for t in after]:
            return None
        for before, second, edited in zip(first, again, after, strict=True):
            reference = self.reference(call, before)
            if not steady(before, second, reference):
                return None
            each = [difference([a], [b]) for a, b in zip(edited, before, strict=True)]
            typical = sorted(each, reverse=True)[int(_PERVASIVE * len(each)) - 1]
            if typical > reference:
                return Seen(typical, reference)
        return None

    @shielded
    def _remember(self, batch: Any, iterator: Any) -> None:
        """Remember a batch while it is wanted."""
        wanted = self.is_wanted and self.recorder.patches.live
        tensors = list(tensors_in(batch))[:_TENSORS] if wanted else []
        self._batch = tensors if tensors and _are_samples(tensors, iterator) else []


def draws_samples(iterator: Any) -> data.BatchSampler | None:
    """Return by what a loader draws the samples of a batch, if each of them is drawn at random."""
    batches = getattr(iterator, "_index_sampler", None)
    own = type(batches) is data.BatchSampler and isinstance(batches.sampler, RANDOM)
    return batches if own else None


def _are_samples(batch: list[torch.Tensor], iterator: Any) -> bool:
    """Say whether the rows of a batch are single samples that a loader has drawn at random."""
    sampler = draws_samples(iterator)
    if sampler is None or getattr(iterator, "_collate_fn", None) is data.default_collate:
        return sampler is not None
    count = sampler.batch_size
    # Of nodes, parts of pictures or places in time there are as many by chance alone.
    return all(tensor.shape[:1] == (count,) and count not in tensor.shape[1:] for tensor in batch)


def _same(given: torch.Tensor, loaded: torch.Tensor) -> bool:
    """Say whether a tensor is what was loaded: moved, cast, in another shape, or like it by row."""
    if given is loaded:
        return True
    if given.dim() == 0 or loaded.dim() == 0 or len(given) != len(loaded):
        return False
    rows, own = given.detach().reshape(len(given), -1), loaded.reshape(len(loaded), -1)
    if rows.shape != own.shape:
        return False
    rows, own = rows.cpu(), own.cpu().to(rows.dtype)
    return torch.equal(rows, own) or _are_alike(rows, own)


def _are_alike(rows: torch.Tensor, own: torch.Tensor) -> bool:
    """Say whether each row of many numbers is what was made of one of others."""
    if not rows.is_floating_point() or rows.shape[1] < _NUMBERS:
        return False
    stride = -(-rows.shape[1] // _COLUMNS)
    parts = [tensor[:_ROWS, ::stride].double() for tensor in (rows, own)]
    one, other = (nn.functional.normalize(part - part.mean(0)) for part in parts)
    return bool(((one * other).sum(1) > _ALIKE).all())


def _find_drawn(tensors: list[torch.Tensor]) -> int | None:
    """Return the axis along which an input was drawn from a table of the user's, in no order."""
    axes = (0, 1) if tensors[0].dim() > 2 else (0,)
    return next((axis for axis in axes if find_order(tensors, axis) is not None), None)


def find_order(tensors: list[torch.Tensor], axis: int = 0) -> torch.Tensor | None:
    """Return the indices in no order at which an input is a table among the user's variables."""
    tensors = [tensor.transpose(0, axis) for tensor in tensors if tensor.dim() > axis]
    given, count = tensors[0].detach(), len(tensors[0])
    # A row of a few numbers may be a point or a node, of which many are drawn of one sample.
    alone = given.dim() > 2 or (given.dim() == 2 and not given.is_floating_point())
    pairs = any(_is_of_pairs(tensor, count) for tensor in tensors)
    if not alone or not given.is_cpu or count < _LEAST_ROWS or pairs:
        return None
    held = [tensor.detach() for _, _, tensor in named_tensors() if tensor.is_cpu]
    orders = [t for t in held if t.dtype is torch.int64 and t.shape == (count,)]
    held = [t.transpose(0, axis) for t in held if t.dim() > axis]
    tables = [t for t in held if t.shape[1:] == given.shape[1:] and len(t) > count]
    for order in filter(_has_no_order, orders[:_TABLES]):
        able = (each for each in tables[:_TABLES] if order.min() >= 0 and order.max() < len(each))
        if any(torch.equal(table[order], given) for table in able):
            return order
    return None


def _is_of_pairs(tensor: torch.Tensor, count: int) -> bool:
    """Say whether an input has an entry for each pair of rows, as what joins nodes of a graph."""
    return tensor.layout != torch.strided or tensor.shape[:2] == (count, count)


def _has_no_order(indices: torch.Tensor) -> bool:
    """Say whether indices are different, and neither rise nor fall."""
    steps = indices.sort().values.diff(), indices.diff()
    return bool((steps[0] > 0).all() and (steps[1] > 0).any() and (steps[1] < 0).any())


def _edit(entry: Any, axis: int) -> Any:
    """Return an input with its samples 0, 2, 4, ... exchanged for sample 1."""
    if not isinstance(entry, torch.Tensor):
        return entry
    edited = entry.detach().clone()
    samples = edited.movedim(axis, 0)  # a view
    samples[::2] = entry.detach().movedim(axis, 0)[1]
    return edited


def _others(
    output: list[torch.Tensor], shape: torch.Size, axis: int, *, sure: bool
) -> list[torch.Tensor]:
    """
    Return the samples 1, 3, 5, ... of each output, first axis first: those that stay as they are.

    Only of outputs with one entry for each sample, and none for each pair of them. Where what was
    drawn is along the second axis, those that have nothing of the first: else it may be points.
    """
    if axis and sure:
        count, length = shape[axis], shape[0]
        rows = [t for t in output if t.shape[:1] == (count,) and length not in t.shape]
        return [t[1::2].clone() for t in rows if count not in t.shape[1:] and t.numel()]
    able = (
        t
        for t in output
        if t.shape[: axis + 1] == shape[: axis + 1] and shape[axis] not in t.shape[axis + 1 :]
    )
    return [t.movedim(axis, 0)[1::2].clone() for t in able if t.numel()]


def _is_sequence(tensors: list[torch.Tensor]) -> bool:
    """Say whether inputs have two axes that cannot be taken for one another, the same in all."""
    shapes = {tuple(tensor.shape[:2]) for tensor in tensors}
    return len(shapes) == 1 and len(set(*shapes)) == 2


def counts_time_first(module: nn.Module) -> bool:
    """Say whether a module has a layer whose second axis is that of samples."""
    return any(_takes_time_first(part) for part in module.modules())


def _takes_time_first(layer: nn.Module) -> bool:
    """Say whether a layer of torch takes time along the first axis, samples along the second."""
    return isinstance(layer, _SEQUENCE_LAYERS) and not getattr(layer, "batch_first", True)


@contextlib.contextmanager
def _watch_sequences(shape: torch.Size) -> Iterator[list[str]]:
    """Collect the layers that are given time and samples along these two axes, in this order."""
    seen: list[str] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Remember a layer that is given a sequence of this shape."""
        given = inputs[0] if inputs else None
        if (
            _takes_time_first(layer)
            and isinstance(given, torch.Tensor)
            and given.shape[:2] == shape
        ):
            seen.append(type(layer).__name__)

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def _mixes_on_purpose(module: nn.Module) -> bool:
    """Say whether a module normalises with the statistics of the batch in evaluation mode too."""
    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORM)]
    return any(norm.running_mean is None for norm in norms)
