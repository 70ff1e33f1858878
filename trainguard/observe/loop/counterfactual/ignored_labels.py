"""Ignored labels edited: whether labels that a mask leaves out matter, and those it leaves in."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.influence import Kept, keep_places
from trainguard.observe.loop.counterfactual.labels import LabelWitness, differ, labels_of
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    Shrinking,
)
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.tools.local_values import storage_of

# What keeps labels what they are, so that its result is followed too.
_NEUTRAL = {
    *("getitem", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute"),
    *("to", "float", "double", "long", "int", "bool", "type", "type_as", "half", "bfloat16"),
    *("contiguous", "clone", "detach", "t", "expand", "view_as", "reshape_as", "cpu"),
}
# What finds out for itself which labels are left out.
_FINDS = {
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isfinite", "isinf", "nan_to_num", "nonzero"),
    *("clamp", "relu", "sign", "isin", "unique", "nanmean", "nansum", "where", "equal", "any"),
}


class IgnoredLabelsEdited(Shrinking):
    """
    Labels that are one constant, exactly where a mask beside them says, become others that occur.

    measured: 1 where the loss or the gradients are others then, else 0; numbers: the same for the
    labels that the mask leaves in, and whether the constant is no label: not zero, and nowhere
    else. Void where the step depends on neither, or looks for the constant itself.
    """

    name = "ignored labels edited"
    asks = 2
    edits_ignored = True  # else the labels that the mask leaves in
    _marks = False
    _numbers: tuple[float, ...] = ()

    def fits(self, call: ModuleCall) -> str:
        """Ask where a loader serves labels and a mask for them, beside the inputs."""
        found = _masked(call)
        if found is None:
            return ""
        labels, ignored = found
        constant = labels[ignored][0]
        self._marks = bool(constant != 0) and not bool((labels[~ignored] == constant).any())
        self.count, self.choices = int(ignored.sum()), len(torch.unique(labels[~ignored]))
        if self.places is None:
            return f"{self.count} of {labels.numel()} labels, which a mask leaves out"
        place = ", ".join(map(str, ignored.nonzero()[self.places[0]].tolist()))
        return f"label [{place}]" + self.others("that are left out")

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Put labels that occur in the place of those that are left out, or mix up the others."""
        found = _masked(call)
        assert found is not None
        if not self.edits:
            return
        labels, ignored = found
        occurring, constant = labels[~ignored], float(labels[ignored][0])
        with torch.no_grad():
            if self.edits_ignored:
                self.count = int(ignored.sum())
                pool = occurring if self.values is None else torch.unique(occurring)
                labels[tuple(ignored.nonzero()[self.chosen()].T)] = self.pick(pool)
            else:
                labels[~ignored] = occurring.roll(1)
        _FollowLabels(labels, constant, way_out.void).__enter__()  # type: ignore[no-untyped-call]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that gives up where a module is given a label."""
        found = _masked(call)
        assert found is not None
        return LabelWitness(call.recorder, way_out, call.module, [found[0]])

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say whether the loss or the gradients have changed."""
        if plain["streams"] != edited["streams"]:
            return Contrast(void="the edit changed how many random numbers are drawn")
        changed = differ(plain, edited)
        losses = f"with other labels there {_tell_losses(plain, edited)}"
        return Contrast(float(changed), 1.0, smallest=losses if changed else "")

    def follow_ups(self, contrast: Contrast) -> "Iterator[Question]":
        """Ask whether the labels matter that the mask leaves in, and how few of the others do."""
        self._numbers = ()
        if not contrast.void:
            yield _KeptLabelsEdited()
        if contrast.measured:
            yield from self.shrink(self.count, IgnoredLabelsEdited)

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Add whether the others matter; where neither do, the step has its labels from before."""
        changed = differ(plain, edited)
        if self._numbers:
            if changed:
                self.shows(self.tell(f"another {edit}", plain, edited))
        elif not changed and not contrast.measured:
            return Contrast(void="the step depends on none of them")
        else:
            self._numbers = float(changed), float(self._marks)
        return None

    def conclude(self, contrast: Contrast) -> Contrast:
        """Tell of both."""
        return super().conclude(contrast)._replace(numbers=self._numbers)

    def is_broken(self, contrast: Contrast) -> bool:
        """Say whether the step changes: by as much as it may is measured already."""
        return not contrast.void and contrast.measured > 0

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether the step changes."""
        return self.is_broken(contrast)

    def kept(self, call: ModuleCall) -> Kept:
        """Leave out what the mask does, and what nothing is learned from."""
        found = _masked(call)
        assert found is not None
        return keep_places(found[1], learned=True)

    def is_settled(self, contrast: Contrast) -> bool:
        """Believe one step in which they are no matter."""
        return contrast.measured == 0


class _KeptLabelsEdited(IgnoredLabelsEdited):
    """The labels that the mask leaves in change their places."""

    edits_ignored = False


def _tell_losses(plain: Report, edited: Report) -> str:
    """Return the losses of the step with an edit and without, in words."""
    return f"the loss is {edited['loss']:.6g} instead of {plain['loss']:.6g}"


class _FollowLabels(TorchFunctionMode):
    """Follows labels through torch, and ends where the step finds out which are left out."""

    def __init__(
        self, labels: torch.Tensor, constant: float, void: Callable[[str], NoReturn]
    ) -> None:
        super().__init__()
        self._void, self._constant = void, constant
        self._places = {storage_of(labels)}
        self._alive = [labels]  # a place that is freed may be taken by something else

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch; what stays a label is followed."""
        result = func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs or {}))
        if any(storage_of(tensor) in self._places for tensor in given):
            name = getattr(func, "__name__", "").strip("_")
            skips = name in {"cross_entropy", "nll_loss"} and self._skips(args, kwargs or {})
            if name in _FINDS or skips:
                self._void(f"the step itself looks at the labels ({name})")
            if name in _NEUTRAL and isinstance(result, torch.Tensor):
                self._places.add(storage_of(result))
                self._alive.append(result)
        return result

    def _skips(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether a loss function was told to leave the constant out."""
        told = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
        return bool(told == self._constant)


def _masked(call: ModuleCall) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return labels that a loader served, and where a mask beside them leaves them out."""
    served = labels_of(call)
    for labels in served:
        for mask in served:
            if mask is labels or mask.shape != labels.shape or not _is_mask(mask):
                continue
            for ignored in (mask == 0, mask != 0):
                if _is_constant(labels[ignored]) and not _is_constant(labels[~ignored]):
                    return labels, ignored
    return None


def _is_mask(tensor: torch.Tensor) -> bool:
    """Say whether a tensor holds nothing but zeros and ones, and both."""
    return bool(((tensor == 0) | (tensor == 1)).all()) and not _is_constant(tensor)


def _is_constant(tensor: torch.Tensor) -> bool:
    """Say whether all elements of a tensor are the same; nan is itself."""
    first = tensor.flatten()[:1].expand_as(tensor.flatten())
    return bool(torch.isclose(tensor.flatten(), first, rtol=0, atol=0, equal_nan=True).all())
