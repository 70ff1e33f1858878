"""See which cross-entropies are taken while a model or its loss runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_WITHOUT_MEAN = ("sum", "none")


class CrossEntropyCalls(TorchFunctionMode):
    """
    Keeps every mean cross-entropy that is taken inside the block.

    taken: (number of classes, value) of each, in order. One with class weights, smoothed labels
    or soft targets has another value at a uniform guess, and is left out; a contrastive one too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, float]] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch, and keep what it returned where it is a cross-entropy."""
        given = dict(keywords or {})
        returned = function(*args, **given)
        if function is functional.cross_entropy and _is_plain(given):
            logits = args[0] if args else given["input"]
            target = args[1] if len(args) > 1 else given["target"]
            if isinstance(returned, Tensor) and _are_labels(target):
                classes = logits.shape[1] if logits.ndim > 1 else logits.shape[0]
                self.taken.append((int(classes), float(returned.detach())))
        return returned


def _are_labels(target: Tensor) -> bool:
    """
    Say whether targets are labels, and not soft ones or places.

    In a contrastive loss the target is the place of the partner in the batch: 0, 1, 2, ... or
    always 0. Its logits are divided by a temperature and far from those of a guess.
    """
    if target.is_floating_point() or target.numel() < 2:
        return False
    jumps = target.flatten().diff()
    return not bool((jumps == 0).all() or (jumps == 1).all())


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Say whether a cross-entropy is a mean over all classes alike."""
    weighted = given.get("weight") is not None or given.get("label_smoothing")
    return not weighted and given.get("reduction", "mean") not in _WITHOUT_MEAN
