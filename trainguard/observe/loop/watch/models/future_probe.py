"""Watches what tokens are predicted from: the next one, the token itself, the one after next."""

import inspect
from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import torch

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses.picked_classes import PickedClasses
from trainguard.observe.loop.watch.models.function_lines import find_function_line
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Inputs, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen, steady
from trainguard.observe.tools.patches import Patches

_LEAST_LENGTH = 4
_FEWEST_TARGETS = 8  # that are counted: numbers of tags and of words are alike in a short text
NEXT = 0.99  # of the targets that are the next token
_EARLIER = 4  # one in so many of the outputs that a loss reads stands before the middle, mostly
_COPIED = 0.9  # of the targets that are the token itself: then nothing is predicted
_MOST_TARGETS = 8  # of a step that are remembered
_LEAST_TIMES = 3  # tries in which all is two places ahead: heads may be trained in turns
_IGNORED = -100
# What brings places together, by the names of functions and modules; the likeliest first.
_MIXERS = (
    *("scaled_dot_product_attention", "multihead_attention", "transformer_encoder_layer"),
    *("transformer_encoder", "softmax"),
)  # no recurrent layers: most of them read forwards
_FEWEST_ROWS = 4  # that begin anew at their ends: fewer may do so by chance
_TARGETS = {"label", "labels", "target", "targets", "y"}
_WHOLE = (torch.int64, torch.int32)
_CUT = {*autograd_graph.SAME, "LogSoftmaxBackward", "SliceBackward", "SoftmaxBackward"}


class _Cut(NamedTuple):
    """How many places were cut off of an axis of some size, at its beginning and its end."""

    size: int
    first: int
    last: int


class _Target(NamedTuple):
    """What a loss is to predict, and how its scores were cut for that."""

    values: torch.Tensor
    cuts: list[_Cut]


class FutureProbe(ModuleProbe):
    """
    The Probe event "future": a token is edited, and earlier outputs must not care.

    Only where the targets of a loss function are the next tokens of one input, given that input and
    no other that holds them as well, and where there is an output for each position.
    """

    makes = ("Probe:future",)
    relies_on = ("Forwards", "LossFunctions", "PickedClasses")

    probe = "future"
    rounding = 1e-4

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._target: torch.Tensor | None = None
        self._told: torch.Tensor | None = None  # the places whose outputs a loss reads
        self._place = 0

    def install(self, patches: Patches) -> None:
        """Be told of losses."""
        if self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
            self.recorder.watcher(PickedClasses).listeners.append(self._on_pick)

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
        counted = places and not target.is_floating_point()
        self._told = _told(target, call.inputs[self._place]) if counted else None
        return len(places) == 1

    def is_of(self, tokens: Any, target: torch.Tensor) -> bool:
        """Say whether targets are of the kind that is asked about."""
        ahead, copied = token_shares(tokens, target)
        return ahead >= NEXT and copied < _COPIED

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Edit one token of each sequence, and see which outputs change."""
        tokens = call.inputs[self._place]
        middle = self._middle_of(tokens)
        first = self.scores(run(call.inputs), tokens)
        if first is None:
            return None
        reference = self.reference(call, first)
        if not steady(first, self.scores(run(call.inputs), tokens), reference):
            return None
        edited = self._with(call.inputs, self.edit(tokens, middle))
        after = self.scores(run(edited), tokens)
        if after is None or after.shape != first.shape:
            return None
        if self._told is not None:  # what no loss reads may see what it likes: a prompt, for one
            after = torch.where(self._told.to(after.device)[..., None], after, first)
        parts = (slice(middle), slice(middle, middle + 1), slice(middle + 1, None))
        changes = [difference([after[:, part]], [first[:, part]]) for part in parts]
        return self.judge(changes, reference)

    def length_of(self, tokens: torch.Tensor) -> int:
        """Return how many places there are."""
        return tokens.shape[1]

    def edit(self, tokens: torch.Tensor, middle: int) -> torch.Tensor:
        """Return tokens of which one is another one in each sequence."""
        return _edit(tokens, middle)

    def scores(self, output: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor | None:
        """Return the first output with something for each place, (N, T, ...)."""
        return _scores(output, tokens.shape)

    def judge(self, changes: list[float], reference: float) -> Seen | None:
        """Tell how much the outputs before the edited token change."""
        if changes[0] <= reference:
            return None
        lines = (find_function_line(self.recorder, name) for name in _MIXERS)
        return Seen(changes[0], reference, source=next(filter(None, lines), ""))

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return f"next token, {module}"

    def _middle_of(self, tokens: torch.Tensor) -> int:
        """Return the place that is edited: the middle, or that of the outputs that a loss reads."""
        middle = self.length_of(tokens) // 2
        told = None if self._told is None else self._told.nonzero()[:, 1]
        if told is None or not len(told) or int((told < middle).sum()) * _EARLIER >= len(told):
            return middle
        return min(int(told.median()) + 1, self.length_of(tokens) - 1)

    def _with(self, inputs: Inputs, tokens: torch.Tensor) -> Inputs:
        """Return inputs with other tokens in their place."""
        return (*inputs[: self._place], tokens, *inputs[self._place + 1 :])

    def _on_loss(self, tally: LossCalls, scores: Any, target: Any, _value: Any) -> None:
        """Remember what a loss function was to predict, while something is to be tried."""
        if self.is_wanted and tally.function in CROSS_ENTROPIES and not tally.evaluation:
            wanted = target.detach()
            if tally.ignored >= 0 and not wanted.is_floating_point():
                wanted = wanted.masked_fill(wanted == tally.ignored, _IGNORED)
            self.note_target(wanted, scores.grad_fn)
        elif not self.is_wanted:
            self.recorder.watcher(LossFunctions).listeners.remove(self._on_loss)

    def _on_pick(self, target: torch.Tensor, scores: Node) -> None:
        """Remember what a loss by hand picks of a softmax."""
        if self.is_wanted:
            self.note_target(target, scores)

    def note_target(self, target: torch.Tensor, node: Node) -> None:
        """Remember what is to be predicted."""
        self._target = target


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
    The Probe event "shifted": targets stand two places after the tokens that they are told from.

    Only where two have shifted them, who cannot both be right: the model is given labels that are
    the next tokens, and the targets follow these; or the scores lose their last place to targets
    that have lost their first one, or that begin anew at their end, of a model that reads forwards.
    No loss may be of the next tokens, in any try of the second kind.
    """

    makes = ("Probe:shifted",)

    probe = "shifted"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._targets: list[_Target] = []
        self._times = 0
        self._is_given = self._is_next = False

    def fits(self, call: CopyableCall) -> bool:
        """Say whether labels that were given are shifted again; or, at last, whether others are."""
        targets, self._targets, self._target = self._targets, [], None
        entries = [each for each in call.inputs if torch.is_tensor(each)]
        follows = [any(_share(e, t.values, 1) >= _COPIED for t in targets) for e in entries]
        self._is_given = any(
            not is_next and _share(tokens, labels, 1) >= NEXT and _are_shifted(labels, targets)
            for (tokens, is_next), (labels, _) in permutations(
                zip(entries, follows, strict=True), 2
            )
        )
        self._is_next |= any(follows)
        return self._is_given or self._is_shifted_twice(call, targets)

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """See that the model reads forwards; of labels that it was given the values say it."""
        return Seen(2.0, 1.0) if self._is_given else super().look(call, run)

    def judge(self, changes: list[float], reference: float) -> Seen | None:
        """Tell it of a model whose output for a token depends on it, and on none after it."""
        return Seen(2.0, 1.0) if changes[0] <= reference < changes[1] else None

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return module

    def note_target(self, target: torch.Tensor, node: Node) -> None:
        """Remember all that is to be predicted, and how the scores were cut for it."""
        if len(self._targets) < _MOST_TARGETS:
            self._targets.append(_Target(target, list(_cuts(node))))

    def _is_shifted_twice(self, call: CopyableCall, targets: list[_Target]) -> bool:
        """Say in the last try whether all that is predicted was shifted twice, of one input."""
        places = [
            place
            for place, tokens in enumerate(call.inputs)
            if any(
                _share(tokens, t.values, 2) >= NEXT and _is_cut_twice(tokens, t) for t in targets
            )
        ]
        self._times += len(places) == 1
        if self._left or self._is_next or len(places) != 1 or self._times < _LEAST_TIMES:
            return False
        self._place = places[0]
        return all(p.requires_grad for p in call.module.parameters())  # no head beside frozen ones


def _names_of(call: CopyableCall) -> tuple[str, ...]:
    """Return the names of the inputs of a call; of equal ones those of the parameters."""
    given = len(call.inputs) - len(call.keywords)
    own = tuple(inspect.signature(call.module.forward).parameters)[:given]
    twice = any(torch.is_tensor(e) and torch.equal(e, call.inputs[0]) for e in call.inputs[1:given])
    return (*(own if twice and len(own) == given else ("",) * given), *call.keywords)


def token_shares(tokens: Any, target: torch.Tensor) -> tuple[float, float]:
    """Return of how many targets the next token of an input is one, and the token itself."""
    return _share(tokens, target, 1), _share(tokens, target, 0)


def _share(tokens: Any, target: torch.Tensor, ahead: int) -> float:
    """Return of how many targets the token so many places ahead is one."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in _WHOLE:
        return 0.0
    count, length = tokens.shape
    each = target.numel() // max(1, count)
    if length < _LEAST_LENGTH or each not in (length, length - 1) or target.numel() != count * each:
        return 0.0
    kept = length - max(ahead, 1)
    rows = target.reshape(count, each).to(tokens.device)[:, :kept]
    valid = rows >= 0
    if ahead > 1:  # what ends a row that is padded stands in no input
        valid[:, :-1] &= valid[:, 1:].clone()
    known = int(valid.sum())
    if known < _FEWEST_TARGETS:
        return 0.0
    return int(((rows == tokens[:, ahead : ahead + kept]) & valid).sum()) / known


def _told(target: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return for each place of tokens (N, T) whether its output is told a target."""
    count, length = tokens.shape
    told = torch.zeros(count, length, dtype=torch.bool, device=target.device)
    rows = target.reshape(count, -1)
    told[:, : rows.shape[1]] = rows >= 0
    return told


def _cuts(node: Node) -> Iterator[_Cut]:
    """Yield what was cut off of scores before a loss took them."""
    while node is not None and autograd_graph.kind_of(node) in _CUT:
        if autograd_graph.kind_of(node) == "SliceBackward":
            size = autograd_graph.sizes(node)[node._saved_dim]  # noqa: SLF001 torch names it so
            first, end = map(autograd_graph.signed, (node._saved_start, node._saved_end))  # noqa: SLF001
            yield _Cut(size, first, max(0, -end if end < 0 else size - end))
        node = node.next_functions[0][0]


def _are_shifted(labels: torch.Tensor, targets: list[_Target]) -> bool:
    """Say whether some targets follow labels, and do not only begin at the second place."""
    return any(
        _share(labels, target.values, 1) >= NEXT
        and not any(cut.size == labels.shape[1] and cut.first for cut in target.cuts)
        for target in targets
    )


def _is_cut_twice(tokens: torch.Tensor, target: _Target) -> bool:
    """Say whether scores lost their last place to a shift, or targets begin anew at their end."""
    count, length = tokens.shape
    if target.values.numel() == count * (length - 1):
        return [cut for cut in target.cuts if cut.size == length] == [_Cut(length, 0, 1)]
    last, second = target.values.reshape(count, length)[:, -1], tokens[:, 1]
    apart = count >= _FEWEST_ROWS and bool((second != second[0]).any())
    return apart and torch.equal(last.to(second), second)


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
