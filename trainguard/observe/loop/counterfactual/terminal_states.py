"""What follows the end of an episode, edited: whether a step still learns from it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
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
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import start_of
from trainguard.observe.tools.owners import NEXT, named_tensors, words_in

_LEAST_ROWS = 4
_ENDS = {
    *("bd", "bdone", "bdones", "d", "done", "dones", "ds", "dw", "ended"),
    *("crash", "crashed", "dead", "died", "failed", "fallen", "fell"),  # what has ended it
    *("terminal", "terminals", "terminated", "terminateds", "terminations"),
}
_GOES_ON = {"not", "non", "notdone", "nonterminal", "nonterminals"}
_MOSTLY = 0.75  # of the states: episodes of fewer steps than four thirds are no episodes
_CUT_OFF = {"truncated", "truncations", "trunc", "timeout", "timeouts", "limit"}


class TerminalStatesEdited(Shrinking):
    """
    The states that come after terminal ones become those that come after others.

    measured: how much the loss changes; reference: what rounding may. Void where what comes next is
    a target itself, as of a model of the world, or is learned from, as where codes are compared.
    """

    name = "terminal states edited"
    asks = 3
    before_learning = True

    def fits(self, call: ModuleCall) -> str:
        """Ask where a batch has its terminal states marked, and what follows each of its states."""
        found = _find(call)
        if found is None:
            return ""
        self.count, self.choices = int(found[0].sum()), int((~found[0]).sum())
        if self.places is None:
            return f"what follows {self.count} of {len(found[0])} states"
        after = f"after state {int(found[0].nonzero()[self.places[0]])}, which is terminal"
        return after + self.others("that are")

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Copy what follows another state to the places of those that are terminal."""
        found = _find(call)
        if found is None:
            way_out.void("what follows is not there any more")
        ends, followers = found
        edited, lasting = ends.nonzero()[self.chosen(), 0], (~ends).nonzero()[:, 0]
        source = int(lasting[0]) if self.values is None else lasting[self.values]
        with torch.no_grad():
            for after in followers:
                after[edited] = 2 * after[source] - after.mean(0)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that sees who is asked about what follows."""
        found = _find(call)
        return _FollowerWitness(call, way_out, *(found or (torch.empty(0), [])))

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Hold the losses against each other."""
        if plain["streams"] != edited["streams"]:
            return Contrast(void="the edit changed how many random numbers are drawn")
        self.asks = 0
        allowed = plain["rounding"] * abs(plain["loss"])
        return Contrast(abs(edited["loss"] - plain["loss"]), allowed)

    def follow_ups(self, contrast: Contrast) -> "Iterable[Question]":
        """Look for a single state after which the next one matters."""
        return self.shrink(self.count, TerminalStatesEdited) if self.is_broken(contrast) else ()

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Tell of fewer states that change the loss."""
        found = self.compare(plain, edited)
        if self.is_broken(found):
            self.shows(self.tell(f"another state {edit}", plain, edited))
        return None


class _FollowerWitness(Witness):
    """
    Gives up unless what follows is only looked at, by networks that do not learn from it.

    While an agent acts, what follows a state is the next one that it acts on, of a new episode too:
    what is learned from is then another table, or what follows gets the name of a state.
    """

    def __init__(
        self, call: ModuleCall, way_out: Exit, ends: torch.Tensor, followers: list[torch.Tensor]
    ) -> None:
        super().__init__(call.recorder, way_out, call.module)
        self._rows = len(ends)
        self._places = set(map(start_of, followers))
        self._asked = False

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See whether a module is given what follows."""
        given = list(tensors_in(inputs))
        follows = any(start_of(tensor) in self._places for tensor in given)
        self._asked |= follows
        if _are_states(self._places):
            self.way_out.void("what follows is acted on")
        held = {id(p) for window in self.recorder.windows for p in window.parameters}
        if forward.gradients and any(id(p) in held for p in module.parameters()):
            if follows:
                self.way_out.void("what follows is learned from too")
            if given and given[0].dim() > 1 and len(given[0]) != self._rows:
                self.way_out.void("other states are learned from")
        super().forward(forward, module, inputs, output)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """See whether what follows is to be predicted."""
        if {start_of(scores), start_of(target)} & self._places:
            self.way_out.void("what follows is a target")
        super().on_loss(tally, scores, target, value)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report, where anything was asked about what follows."""
        if not self._asked:
            self.way_out.void("no network is asked about what follows")
        super().after_backward(loss)


def _find(call: ModuleCall) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
    """Return which states of a batch are terminal, and what follows each; nothing if unclear."""
    given = [t for t in call.tensors() if t.dim() > 1 and len(t) >= _LEAST_ROWS]
    if not given:
        return None
    rows, ends = len(given[0]), []
    followers: list[torch.Tensor] = []
    states: list[torch.Tensor] = []
    for _, name, tensor in named_tensors():
        words = words_in(name)
        if len(tensor) != rows or _CUT_OFF & words:
            continue
        if tensor.numel() == rows and (_ENDS | _GOES_ON) & words:
            ends.append(_read_ends(tensor.detach().reshape(-1), words))
        elif any(tensor.shape == each.shape for each in given):
            (followers if NEXT & words else states).append(tensor)
    learning = torch.is_grad_enabled()  # else it is asked only about what follows
    places = {*map(start_of, given)}
    if not (followers or learning):  # by another name: what is learned from is given with a graph
        followers = [tensor for tensor in states if start_of(tensor) in places]
    after = {*map(start_of, followers)}
    asked = learning or places & after
    clear = bool(ends) and all(torch.equal(ends[0], other) for other in ends)
    distinct = bool({*map(start_of, states)} - after) and not _are_states(after)
    if not (clear and asked and distinct and all(map(is_editable, followers))):
        return None
    return (ends[0], followers) if 0 < int(ends[0].sum()) <= rows // 2 else None


def _read_ends(marks: torch.Tensor, words: set[str]) -> torch.Tensor:
    """Return which states are terminal, by their marks: a mask of ends may be what is kept."""
    ends = marks == float(not _GOES_ON & words)
    is_kept = "mask" in words and int(ends.sum()) >= _MOSTLY * len(ends)
    return marks == 0 if is_kept else ends


def _are_states(places: set[int]) -> bool:
    """Say whether one function of the user calls what follows by another name as well."""
    names: dict[tuple[int, int], set[bool]] = {}
    for frame, name, tensor in named_tensors():
        if start_of(tensor) in places:
            names.setdefault((frame, start_of(tensor)), set()).add(bool(NEXT & words_in(name)))
    return any(len(kinds) > 1 for kinds in names.values())
