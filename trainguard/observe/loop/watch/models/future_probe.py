"""Watches what tokens are predicted from: the next one, the token itself, the one after next."""

import inspect
from itertools import permutations
from typing import Any

import torch

from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Inputs, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen, steady
from trainguard.observe.tools.patches import Patches

_LEAST_LENGTH = 4
NEXT = 0.99  # of the targets that are the next token
_COPIED = 0.9  # of the targets that are the token itself: then nothing is predicted
_MOST_TARGETS = 8  # of a step that are remembered
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
        names = _names_of(call)
        places = [
            place
            for place, entry in enumerate(call.inputs)
            if names[place] not in _TARGETS and self.is_of(entry, target)
        ]
        self._place = places[0] if places else 0
        return len(places) == 1

    def is_of(self, tokens: Any, target: torch.Tensor) -> bool:
        """Say whether targets are of the kind that is asked about."""
        ahead, copied = token_shares(tokens, target)
        return ahead >= NEXT and copied < _COPIED

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Edit one token of each sequence, and see which outputs change."""
        tokens = call.inputs[self._place]
        middle = tokens.shape[1] // 2
        first = _scores(run(call.inputs), tokens.shape)
        if first is None:
            return None
        reference = self.reference(call, first)
        if not steady(first, _scores(run(call.inputs), tokens.shape), reference):
            return None
        edited = self._with(call.inputs, _edit(tokens, middle))
        after = _scores(run(edited), tokens.shape)
        if after is None or after.shape != first.shape:
            return None
        parts = (slice(middle), slice(middle, middle + 1), slice(middle + 1, None))
        changes = [difference([after[:, part]], [first[:, part]]) for part in parts]
        return self.judge(changes, reference)

    def judge(self, changes: list[float], reference: float) -> Seen | None:
        """Tell how much the outputs before the edited token change."""
        return Seen(changes[0], reference) if changes[0] > reference else None

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return f"next token, {module}"

    def _with(self, inputs: Inputs, tokens: torch.Tensor) -> Inputs:
        """Return inputs with other tokens in their place."""
        return (*inputs[: self._place], tokens, *inputs[self._place + 1 :])

    def _on_loss(self, tally: LossCalls, _scores: Any, target: Any, _value: Any) -> None:
        """Remember what a loss function was to predict, while something is to be tried."""
        if self.is_wanted and tally.function in CROSS_ENTROPIES and not tally.evaluation:
            self._target = target.detach()
        elif not self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.remove(self._on_loss)


class PresentProbe(FutureProbe):
    """
    The Probe event "present": a token is edited that is to be predicted, and sees itself.

    Only where the targets are the tokens of one input in their own places, and the outputs depend
    on earlier tokens and on no later ones: what restores tokens from all of them may see itself.
    """

    makes = ("Probe:present",)

    probe = "present"

    def is_of(self, tokens: Any, target: torch.Tensor) -> bool:
        """Say whether the targets are the tokens themselves."""
        ahead, copied = token_shares(tokens, target)
        return copied >= NEXT and ahead < _COPIED

    def judge(self, changes: list[float], reference: float) -> Seen | None:
        """Tell how much the output for the edited token changes, of a model that reads forwards."""
        before, own, behind = changes
        causal = before <= reference < behind
        return Seen(own, reference) if causal and own > reference else None

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return f"its own token, {module}"


class ShiftProbe(FutureProbe):
    """
    The Probe event "shifted": the loss shifts labels that are the next tokens already.

    Only where the model is given the tokens and their labels, so that the one who made the labels
    and the one who shifts them cannot both be right, and no loss of the step is of the next tokens.
    """

    makes = ("Probe:shifted",)

    probe = "shifted"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._targets: list[torch.Tensor] = []

    def fits(self, call: CopyableCall) -> bool:
        """Say whether a loss is of what follows the labels, which follow the tokens."""
        targets, self._targets, self._target = self._targets, [], None
        entries = [each for each in call.inputs if torch.is_tensor(each)]
        return any(
            token_shares(tokens, labels)[0] >= NEXT
            and any(token_shares(labels, target)[0] >= NEXT for target in targets)
            and not any(token_shares(tokens, target)[0] >= _COPIED for target in targets)
            for tokens, labels in permutations(entries, 2)
        )

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Nothing is to be tried: the values say it."""
        return Seen(2.0, 1.0)

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return module

    def _on_loss(self, tally: LossCalls, scores: Any, target: Any, value: Any) -> None:
        """Remember all that is to be predicted."""
        super()._on_loss(tally, scores, target, value)
        if self._target is not None and len(self._targets) < _MOST_TARGETS:
            self._targets.append(self._target)


def _names_of(call: CopyableCall) -> tuple[str, ...]:
    """Return the names of the inputs of a call; of equal ones those of the parameters."""
    given = len(call.inputs) - len(call.keywords)
    own = tuple(inspect.signature(call.module.forward).parameters)[:given]
    twice = any(torch.is_tensor(e) and torch.equal(e, call.inputs[0]) for e in call.inputs[1:given])
    return (*(own if twice and len(own) == given else ("",) * given), *call.keywords)


def token_shares(tokens: Any, target: torch.Tensor) -> tuple[float, float]:
    """Return of how many targets the next token of an input is one, and the token itself."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in _WHOLE:
        return 0.0, 0.0
    count, length = tokens.shape
    each = target.numel() // max(1, count)
    if length < _LEAST_LENGTH or each not in (length, length - 1) or target.numel() != count * each:
        return 0.0, 0.0
    rows = target.reshape(count, each).to(tokens.device)[:, : length - 1]
    valid = rows >= 0
    following, same = rows == tokens[:, 1:], rows == tokens[:, :-1]
    known = int(valid.sum())
    if known < _LEAST_LENGTH:
        return 0.0, 0.0
    return int((following & valid).sum()) / known, int((same & valid).sum()) / known


def _edit(tokens: torch.Tensor, place: int) -> torch.Tensor:
    """Return tokens with one of each sequence exchanged for another that occurs."""
    one = tokens[0, 0]
    other = tokens[tokens != one][0]
    edited = tokens.clone()
    edited[:, place] = torch.where(tokens[:, place] == one, other, one)
    return edited


def _scores(output: list[torch.Tensor], shape: torch.Size) -> torch.Tensor | None:
    """Return the first tensor with a row of scores for each token."""
    for tensor in output:
        if tensor.dim() == 3 and tensor.shape[:2] == shape:
            return tensor.clone()
        if tensor.dim() == 2 and len(tensor) == shape.numel():
            return tensor.reshape(*shape, -1).clone()
    return None
