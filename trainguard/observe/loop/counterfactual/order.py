"""The batch in another order: whether it matters at which place in it a sample stands."""

import math
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.influence import Kept, keep_in_order
from trainguard.observe.loop.counterfactual.labels import ROUNDING
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)
from trainguard.observe.loop.counterfactual.sample_axis import count_rows
from trainguard.observe.loop.counterfactual.samples import (
    PERVASIVE,
    RowsWitness,
    SampleEdited,
    is_of_pairs,
    refuse_statistics,
)
from trainguard.observe.loop.counterfactual.witness import (
    Flags,
    GivenRows,
    Witness,
    find_changes,
)
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import storage_of
from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 8  # of the user's code whose variables are looked at
_DEPTH = 3  # of containers and objects in a variable
_MOST = 2000  # values that are looked at
_LONGEST = 1024  # entries of a list that is looked at: a longer one is a data set, and no batch
_REGISTERED = ("_parameters", "_buffers", "_modules")
_DROPOUTS = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
)
_OPAQUE = (nn.Module, torch.optim.Optimizer, Dataset, DataLoader, type, FunctionType, ModuleType)


class BatchPermuted(Question):
    """
    The samples of a batch are put in another order, in all variables of the callers.

    measured: for how many of the samples that moved something else is handed to a loss function;
    reference: how many moved. Of a loss by hand, all of them where it has another value; numbers:
    both values. Dropout is left out, in a step as it is too. Void where a target did not move with
    its sample, where the batch is normalised, or where other random numbers are drawn.
    """

    name = "batch in another order"
    asks = 2
    needs_follow_ups = True

    def __init__(self, sample: SampleEdited, permutes: bool = True) -> None:
        self._sample = sample  # what became of the others when one was edited
        self.edits = permutes  # else only dropout is left out
        self._before: list[weakref.ref[torch.Tensor]] = []
        self._edited: Report = {}
        self._drawn = self._has_lengths = False

    def prepare(self, window: Window) -> None:
        """Remember what there is before the batch comes: it is no part of that."""
        self._before = [weakref.ref(value) for value in _reach(set()) if torch.is_tensor(value)]

    def fits(self, call: ModuleCall) -> str:
        """Ask where all that has a row for each sample can be given another order."""
        rows, drawn = count_rows(call)
        self._drawn, self._has_lengths = drawn, any(_are_lengths(t, call) for t in call.tensors())
        if not rows or _holds_state(call.module, rows) or not self._find(call, rows):
            return ""
        return f"{rows} samples in another order"

    def applies(self, plain: Report) -> bool:
        """
        Say whether no sample changes another: those that do mind who stands beside them.

        Where lengths are given, one may change a few by its length, after which they are sorted.
        """
        return self._sample.keeps_others or (self._sample.moves_few and self._has_lengths)

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Put the rows of all variables in another order, and leave dropout out."""
        rows, _ = count_rows(call)
        found, order = self._find(call, rows), reorder(rows)
        if self.edits:
            wanted = [tensor[order] for tensor in found]
            with torch.no_grad():
                for tensor, new in zip(found, wanted, strict=True):
                    tensor.copy_(new)
            if not all(_same(tensor, new) for tensor, new in zip(found, wanted, strict=True)):
                way_out.void("the samples share their memory")
        torch.batch_norm = refuse_statistics(torch.batch_norm, way_out)
        drop_nothing(call.module)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks whether targets are the next tokens of what the call is given."""
        return RowsWitness(call, way_out)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Compare at once where nothing was drawn, else once the step without dropout is known."""
        if edited["drawn"]:
            return Contrast(void="random numbers are drawn between the model and the loss")
        if not (self._drawn or edited["follows"]):
            return Contrast(void="the targets are not the next tokens any more")
        self._edited = edited
        return Contrast() if plain["drawn"] else judge_order(plain, edited)

    def follow_ups(self, contrast: Contrast) -> "list[BatchPermuted]":
        """Ask for the step as it is without dropout, where there is some."""
        pending = not contrast.void and not contrast.reference
        return [BatchPermuted(self._sample, permutes=False)] if pending else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Compare the two steps without dropout."""
        return judge_order(edited, self._edited)

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether places matter."""
        return not self.is_settled(contrast)

    def kept(self, call: ModuleCall) -> Kept:
        """Put samples back to their places."""
        rows, _ = count_rows(call)
        order = reorder(rows).argsort() if self.edits else torch.arange(rows)
        return keep_in_order(order)

    def is_settled(self, contrast: Contrast) -> bool:
        """Where the order is no matter, one answer is enough."""
        return contrast.measured < PERVASIVE * contrast.reference

    def _find(self, call: ModuleCall, rows: int) -> list[torch.Tensor]:
        """Return what has a row for each sample; nothing where one of these cannot be edited."""
        given = [*call.tensors(), *call.recorder.watcher(Batches).latest()]
        found = {id(t): t for t in given if t.dim() and len(t) == rows}
        known = {id(own) for ref in self._before if (own := ref()) is not None}
        known |= {id(parameter) for parameter in call.module.parameters()}
        places = {storage_of(tensor) for tensor in found.values()}
        seen: set[int] = set()
        for value in _reach(seen):
            nested = torch.is_tensor(value) and value.is_nested  # it has a size, and no length
            if not _dim(value) or (value.size(0) if nested else len(value)) != rows:
                continue
            if not torch.is_tensor(value):  # a list or an array that nobody can follow
                return []
            if id(value) not in known or storage_of(value) in places:
                found[id(value)] = value
        editable = len(seen) <= _MOST and all(map(is_editable, found.values()))
        return list(found.values()) if editable else []


def judge_order(plain: Report, edited: Report) -> Contrast:
    """Count the samples for which a loss function is given something else at another place."""
    if not plain["rows"]:
        return _judge_by_hand(plain, edited)
    pairs = list(zip(plain["rows"], edited["rows"], strict=False))
    alike = len(plain["rows"]) == len(edited["rows"])
    if not alike or any(a.shape != b.shape or a.function != b.function for a, b in pairs):
        return Contrast(void="the edit changed the shapes of what is compared")
    rows, moved = edited["samples"], 0
    most, first = -1, ""
    for before, after in pairs:
        changes, stayed = _compare(before, after, rows, ROUNDING * plain["rounding"])
        if stayed:
            return Contrast(void="a target does not move with its sample")
        if changes is None:
            continue
        if int(changes.sum()) > most:
            most, first = int(changes.sum()), before.function
    if most < 0:
        return Contrast(void="no loss function is given what belongs to a sample")
    moved = int((reorder(rows) != torch.arange(rows)).sum())
    return Contrast(float(most), float(moved), smallest=f"what {first} is given" if most else "")


def _judge_by_hand(plain: Report, edited: Report) -> Contrast:
    """Compare the values of a loss by hand, where the outputs have moved with their samples."""
    before, after, rows = plain["returned"], edited["returned"], edited["samples"]
    alike = before is not None and after is not None and before.shape == after.shape
    if not alike or len(before.scores) != rows:
        return Contrast(void="no loss function is given what belongs to a sample")
    share, there = ROUNDING * plain["rounding"], before.scores[reorder(rows).numpy()]
    if find_changes(there, after.scores, share).any():
        return Contrast(void="the outputs do not move with their samples")
    losses = plain["loss"], edited["loss"]
    moved = float((reorder(rows) != torch.arange(rows)).sum())
    apart = not math.isclose(*losses, rel_tol=share, abs_tol=share)
    return Contrast(moved if apart else 0.0, moved, losses)


def reorder(rows: int) -> torch.Tensor:
    """Return another order: neighbours, halves and pairs are torn apart, and none is random."""
    places = torch.arange(rows)
    return torch.cat([places[1::2], places[::2].flip(0)])


def _compare(
    plain: GivenRows, edited: GivenRows, samples: int, rounding: float
) -> tuple[Flags | None, bool]:
    """Return which samples have changed in a call, if it says; and whether targets stayed."""
    rows = len(plain.scores)
    if plain.targets is None or edited.targets is None or not rows or rows % samples:
        return None, False
    if is_of_pairs(plain, samples) or _are_places(plain.targets, samples):
        return None, True
    order, each = reorder(samples).numpy(), rows // samples
    # The rows of a sample follow each other, or stand a batch apart.
    places = np.arange(rows).reshape(samples, each), np.arange(rows).reshape(each, samples).T
    found: list[Flags] = []
    for own in places:
        source = np.empty(rows, int)
        source[own.ravel()] = own[order].ravel()
        if np.array_equal(plain.targets[source], edited.targets, equal_nan=True):
            if np.array_equal(plain.targets[source], plain.targets, equal_nan=True):
                return None, False
            there = plain._replace(scores=plain.scores[source])
            changed: Flags = find_changes(there.scores, edited.scores, rounding).max(1)
            found.append(changed[own].any(1) & (order != np.arange(samples)))
    return (min(found, key=lambda flags: int(flags.sum())), False) if found else (None, True)


def _are_lengths(tensor: torch.Tensor, call: ModuleCall) -> bool:
    """Say whether an input has one whole number for each sample, within a size of another input."""
    if tensor.dim() != 1 or tensor.dtype not in (torch.int64, torch.int32) or not len(tensor):
        return False
    longest = {size for other in call.tensors() if other.dim() > 1 for size in other.shape[1:]}
    low, high = tensor.aminmax()
    return bool(0 < low < high and any(high <= size for size in longest))


def _are_places(targets: Any, samples: int) -> bool:
    """Say whether targets are places in the batch, as where each sample is its own class."""
    return bool(targets.size == samples == targets.max() + 1 == len(np.unique(targets)))


def _holds_state(module: nn.Module, rows: int) -> bool:
    """Say whether a part of a model keeps something, besides parameters, for each sample."""
    for part in module.modules():
        own = {key: value for key, value in vars(part).items() if key not in _REGISTERED}
        kept = (t for t in tensors_in(list(own.values())) if not isinstance(t, nn.Parameter))
        if any(rows in tensor.shape for tensor in kept):  # a recurrent layer lists its weights
            return True
    return False


def _reach(seen: set[int]) -> Iterator[Any]:
    """Yield the tensors and rows of numbers in the variables of the user's code that is running."""
    for frame in user_frames(_FRAMES):
        for value in variables_of(frame).values():
            yield from _values_in(value, _DEPTH, seen)


def _values_in(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield the tensors in a value, and what may have a number for each sample, each once."""
    if id(value) in seen or len(seen) > _MOST or isinstance(value, _OPAQUE):
        return
    inside: list[Any] = []
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        inside = list(dict.values(value) if isinstance(value, dict) else value)
        inside = inside if len(inside) <= _LONGEST else []
        if inside and all(isinstance(each, (float, int, torch.Tensor)) for each in inside):
            yield value
    elif hasattr(value, "__dict__"):
        inside = list(vars(value).values())
    else:
        return
    seen.add(id(value))
    for each in inside if depth else ():
        yield from _values_in(each, depth - 1, seen)


def drop_nothing(module: nn.Module) -> None:
    """Let dropout keep everything, wherever it can be told so."""
    for name in _DROPOUTS:
        setattr(functional, name, _keep_all)
    attend: Any = functional.scaled_dot_product_attention

    def attend_to_all(*args: Any, **kwargs: Any) -> Any:
        """Attend without dropout."""
        args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return attend(*args, **{k: 0.0 if k == "dropout_p" else v for k, v in kwargs.items()})

    functional.scaled_dot_product_attention = attend_to_all
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.dropout = 0.0


def _keep_all(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002 torch's name
    """Stand for a dropout that strikes nothing."""
    return input


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors are equal; nan is itself."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _dim(value: Any) -> int:
    """Return how many dimensions a tensor, an array or a list has."""
    return int(getattr(value, "ndim", 1))
