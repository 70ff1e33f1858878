"""Padding edited: whether the loss depends on tokens that a mask marks as padding."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.influence import Kept, keep_places
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    Shrinking,
    is_editable,
)
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.tools.local_values import storage_of

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_WHOLE = (torch.int64, torch.int32)
# What looks beyond its own position whatever a mask says, or takes statistics of all of them.
_LOOKS_AROUND = (
    nn.modules.conv._ConvNd,  # noqa: SLF001 what all of them derive from
    nn.modules.batchnorm._NormBase,  # noqa: SLF001 those of instances too
    nn.RNNBase,
    nn.GroupNorm,
    nn.EmbeddingBag,
)
# What may be done with ids without drawing a conclusion from which of them is padding.
_NEUTRAL = {
    *("embedding", "__getitem__", "view", "reshape", "to", "long", "int", "contiguous", "t", "cpu"),
    *("transpose", "permute", "unsqueeze", "squeeze", "flatten", "size", "dim", "clone", "detach"),
    *("numel", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "__get__", "type"),
    *("__len__", "is_floating_point", "stride", "expand", "data_ptr"),
}


class PaddingEdited(Shrinking):
    """
    Tokens that an explicit mask marks as padding become tokens that occur in the batch.

    measured: by how much the loss changed; reference: rounding. Void where the step draws
    conclusions from the tokens themselves, such as a mask or a target of its own: the edit would
    make real tokens of them.
    """

    name = "padding edited"

    def fits(self, call: ModuleCall) -> str:
        """Ask where one constant token stands at one end of the rows, exactly where a mask says."""
        found = _padded(call)
        if found is None or looks_around(call.module):
            return ""
        ids, where = found
        self.count, self.choices = int(where.sum()), len(self._pool(ids, where))
        if self.places is None:
            return f"{self.count} of {ids.numel()} tokens, marked as padding"
        row, column = where.nonzero()[self.places[0]].tolist()
        value = int(self.pick(self._pool(ids, where))[0])
        first = f"[{row}, {column}], marked as padding, {value} instead of {ids[where][0]}"
        return f"token {first}" + self.others("that are marked")

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Put tokens that occur elsewhere in the batch in the place of padding."""
        found = _padded(call)
        assert found is not None
        if not self.edits:
            return
        ids, where = found
        self.count = int(where.sum())
        with torch.no_grad():
            ids[tuple(where.nonzero()[self.chosen()].T)] = self.pick(self._pool(ids, where))
        _FollowIds(ids, way_out.void).__enter__()  # type: ignore[no-untyped-call]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks at what is to be predicted there."""
        found = _padded(call)
        assert found is not None
        return _TargetWitness(call.recorder, way_out, call.module, found[1])

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Compare the losses, where all loss functions were given the same targets."""
        if not plain["given"]:
            return Contrast(void="no loss function of torch was called")
        if plain["given"] != edited["given"]:
            return Contrast(void="the edit changed the targets too")
        change = abs(plain["loss"] - edited["loss"])
        return Contrast(change, plain["rounding"] * max(1.0, abs(plain["loss"])))

    def follow_ups(self, contrast: Contrast) -> "Iterable[Question]":
        """Look for few tokens that are enough, for a single one."""
        return self.shrink(self.count, PaddingEdited) if self.is_broken(contrast) else ()

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Tell of fewer tokens that change the loss."""
        found = self.compare(plain, edited)
        if self.is_broken(found):
            self.shows(self.tell(edit, plain, edited))
        return None

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether the loss changes."""
        return self.is_broken(contrast)

    def kept(self, call: ModuleCall) -> Kept:
        """Leave out what is marked."""
        found = _padded(call)
        assert found is not None
        return keep_places(found[1])

    def _pool(self, ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Return tokens that occur elsewhere; those that are drawn from in their order."""
        return ids[~where] if self.values is None else torch.unique(ids[~where])

    def is_settled(self, contrast: Contrast) -> bool:
        """Either answer is one for all."""
        return True


class _TargetWitness(Witness):
    """Gives up where a loss function is to score what stands at the marked places."""

    def __init__(
        self, recorder: "Recorder", way_out: Exit, module: nn.Module, where: torch.Tensor
    ) -> None:
        super().__init__(recorder, way_out, module)
        self._marked = (where.clone(), where[:, 1:].clone(), where[:, :-1].clone())

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Give up where the targets at the marked places differ: these are no padding."""
        for where in self._marked:
            if target.numel() == where.numel():
                if not _is_constant(target.detach().reshape(where.shape)[where]):
                    self.way_out.void("the marked tokens are to be predicted")
                break
        super().on_loss(tally, scores, target, value)


class _FollowIds(TorchFunctionMode):
    """Follows the edited tokens through torch, and ends where a conclusion is drawn from them."""

    def __init__(self, ids: torch.Tensor, void: Callable[[str], NoReturn]) -> None:
        super().__init__()
        self._void = void
        self._places = {storage_of(ids)}
        self._alive = [ids]  # a place that is freed may be taken by something else

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch; what neutral ones make of the tokens is followed too."""
        result = func(*args, **(kwargs or {}))
        if any(map(self._holds, tensors_in((args, kwargs or {})))):
            name = getattr(func, "__name__", "")
            if name not in _NEUTRAL:
                self._void(f"the step itself looks at the tokens ({name})")
            fresh = name.startswith("new_") or name.endswith("_like")
            if isinstance(result, torch.Tensor) and result.dtype in _WHOLE and not fresh:
                self._places.add(storage_of(result))
                self._alive.append(result)
        return result

    def _holds(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor is the tokens, or was made of them."""
        return tensor.dtype in _WHOLE and storage_of(tensor) in self._places


def looks_around(module: nn.Module) -> bool:
    """Say whether a model looks beyond its own place in another way than by attention."""
    return any(isinstance(part, _LOOKS_AROUND) for part in module.modules())


def _padded(call: ModuleCall) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tokens of a call, and where a mask of it and they agree on padding."""
    tensors = [t for t in call.tensors() if t.dim() == 2 and is_editable(t)]
    masks = [t for t in tensors if _is_mask(t)]
    for ids in tensors:
        if ids.dtype not in _WHOLE or _is_mask(ids):
            continue
        for mask in masks:
            for where in (mask.bool(), ~mask.bool()):
                if mask.shape == ids.shape and _is_padding(ids, where):
                    return ids, where
    return None


def _is_mask(tensor: torch.Tensor) -> bool:
    """Say whether a tensor holds two values, as masks do."""
    if tensor.dtype == torch.bool:
        return True
    return bool(((tensor == 0) | (tensor == 1)).all())


def _is_padding(ids: torch.Tensor, where: torch.Tensor) -> bool:
    """Say whether marked tokens are one constant at one end of rows of different lengths."""
    counts = where.sum(1)
    if not where.any() or bool((counts == where.shape[1]).any()) or _is_constant(counts):
        return False
    constant = _is_constant(ids[where]) and not _is_constant(ids[~where])
    place = torch.arange(where.shape[1])
    left = torch.equal(where, place < counts[:, None])
    right = torch.equal(where, place >= where.shape[1] - counts[:, None])
    return constant and (left or right)


def _is_constant(tensor: torch.Tensor) -> bool:
    """Say whether all elements of a tensor are the same."""
    return bool((tensor == tensor.flatten()[:1]).all())
