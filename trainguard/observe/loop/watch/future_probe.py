"""Watches for outputs that look ahead: the next token is predicted, and it is seen."""

from typing import Any

import torch

from trainguard.observe.loop.watch.loss_calls import LossCalls
from trainguard.observe.loop.watch.loss_functions import LossFunctions
from trainguard.observe.loop.watch.module_copy import CopyableCall, Inputs, Run, difference
from trainguard.observe.loop.watch.probe import ModuleProbe, Seen, steady
from trainguard.observe.loop.watch.watcher import shielded
from trainguard.observe.tools.patches import Patches

_LEAST_LENGTH = 4
_NEXT = 0.99  # of the targets that are the next token
_COPIED = 0.9  # of the targets that are the token itself: then nothing is predicted
_FUNCTIONS = ("cross_entropy", "nll_loss")
_TARGETS = {"label", "labels", "target", "targets", "y"}
_WHOLE = (torch.int64, torch.int32)


class FutureProbe(ModuleProbe):
    """
    The Probe event "future": a token is edited, and earlier outputs must not care.

    Only where the targets of a loss function are the next tokens of one input, given that input and
    no other that holds them as well, and where there is an output for each position.
    """

    makes = ("Probe:future",)
    relies_on = ("Forwards", "LossFunctions")

    probe = "future"
    rounding = 1e-4

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._target: torch.Tensor | None = None
        self._place = 0

    def install(self, patches: Patches) -> None:
        """Be told of losses."""
        if self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether exactly one input holds the tokens that are to be predicted."""
        target, self._target = self._target, None
        if target is None:
            return False
        names = (*("",) * (len(call.inputs) - len(call.keywords)), *call.keywords)
        places = [
            place
            for place, (name, entry) in enumerate(zip(names, call.inputs, strict=True))
            if name not in _TARGETS and _is_predicted(entry, target)
        ]
        self._place = places[0] if places else 0
        return len(places) == 1

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Edit one token of each sequence, and see how much the outputs before it change."""
        tokens = call.inputs[self._place]
        middle = tokens.shape[1] // 2
        first = _ahead_of(run(call.inputs), tokens.shape, middle)
        if first is None:
            return None
        reference = self.reference(call, first)
        if not steady(first, _ahead_of(run(call.inputs), tokens.shape, middle), reference):
            return None
        edited = self._with(call.inputs, _edit(tokens, middle))
        after = _ahead_of(run(edited), tokens.shape, middle)
        if after is None or after.shape != first.shape:
            return None
        change = difference([after], [first])
        return Seen(change, reference) if change > reference else None

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return f"next token, {module}"

    def _with(self, inputs: Inputs, tokens: torch.Tensor) -> Inputs:
        """Return inputs with other tokens in their place."""
        return (*inputs[: self._place], tokens, *inputs[self._place + 1 :])

    @shielded
    def _on_loss(self, tally: LossCalls, _scores: Any, target: Any, _value: Any) -> None:
        """Remember what a loss function was to predict, while something is to be tried."""
        if self.is_wanted and tally.function in _FUNCTIONS and not tally.evaluation:
            self._target = target.detach()
        elif not self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.remove(self._on_loss)


def _is_predicted(tokens: Any, target: torch.Tensor) -> bool:
    """Say whether targets are the next tokens of an input of token sequences."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in _WHOLE:
        return False
    count, length = tokens.shape
    each = target.numel() // max(1, count)
    if length < _LEAST_LENGTH or each not in (length, length - 1) or target.numel() != count * each:
        return False
    rows = target.reshape(count, each).to(tokens.device)[:, : length - 1]
    valid = rows >= 0
    following, same = rows == tokens[:, 1:], rows == tokens[:, :-1]
    known = int(valid.sum())
    ahead, copied = int((following & valid).sum()), int((same & valid).sum())
    return known >= _LEAST_LENGTH and ahead >= _NEXT * known and copied < _COPIED * known


def _edit(tokens: torch.Tensor, place: int) -> torch.Tensor:
    """Return tokens with one of each sequence exchanged for another that occurs."""
    one = tokens[0, 0]
    other = tokens[tokens != one][0]
    edited = tokens.clone()
    edited[:, place] = torch.where(tokens[:, place] == one, other, one)
    return edited


def _ahead_of(output: list[torch.Tensor], shape: torch.Size, place: int) -> torch.Tensor | None:
    """Return the scores ahead of a place: of the first tensor with a row of them for each token."""
    for tensor in output:
        if tensor.dim() == 3 and tensor.shape[:2] == shape:
            return tensor[:, :place].clone()
        if tensor.dim() == 2 and len(tensor) == shape.numel():
            return tensor.reshape(*shape, -1)[:, :place].clone()
    return None
