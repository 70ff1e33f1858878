"""Watches the moves that an agent learns from: whether what follows a state is another one."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows, start_of
from trainguard.observe.tools.named_numbers import REWARDS
from trainguard.observe.tools.owners import NEXT, named_tensors, words_in
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_LEAST_ROWS = 4
_NODES = 64  # of the graph, from the loss


class Transitions(Watcher):
    """
    The Probe event "moves": how many states are followed by themselves, of all that were looked at.

    A batch of moves is a table of states and one, by its name, of what follows, both of which are
    given to networks, and a reward for each. Or, by no name, what a network was given before it
    returned values of actions of which the loss gathers one for each state, and what one was given
    without a graph in the same step: that is what follows, unless it is the states themselves.
    """

    makes = ("Probe:moves",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._steps: dict[int, tuple[int, int]] = {}  # states that stayed, and all, by step
        self._source = ""
        self._states: list[tuple[torch.Tensor, torch.Tensor]] = []  # and their values of actions
        self._asked: list[torch.Tensor] = []  # of a network, without a graph

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Compare states with what follows them, where a network is given what follows."""
        step = self.recorder.steps
        if step not in _STEPS or step in self._steps:
            return
        given = [t for t in tensors_in(inputs) if _is_table(t)]
        if given and forward.gradients and isinstance(output, torch.Tensor):
            self._states = [(given[0].detach(), output)]
        elif given:
            self._asked.append(given[0].detach())
        named = list(named_tensors()) if given else []
        after = [t for _, name, t in named if NEXT & words_in(name) and t.shape == given[0].shape]
        follows = [t for t in after if start_of(t) == start_of(given[0])]
        rewards = any(REWARDS & words_in(n) and t.numel() == len(given[0]) for _, n, t in named)
        if not follows or not rewards or bool((follows[0] == follows[0][0]).all()):
            return
        states = [
            tensor
            for _, name, tensor in named
            if not NEXT & words_in(name) and tensor.shape == follows[0].shape
        ]
        others = [state for state in states if start_of(state) != start_of(follows[0])]
        if others:
            stayed = max(int((state == follows[0]).flatten(1).all(1).sum()) for state in others)
            self._steps[step] = stayed, len(follows[0])
            self._source = self._source or caller()

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare what a loss gathers values of with what was asked without a graph."""
        (states, self._states), (asked, self._asked) = (self._states, []), (self._asked, [])
        step = self.recorder.steps
        if not states or not asked or step in self._steps or loss.grad_fn is None:
            return
        (given, values), *_ = states
        asked = [each for each in asked if each.shape == given.shape]
        others = [each for each in asked if start_of(each) != start_of(given)]
        if not others or len(others) < len(asked) or not _gathers(loss, values):
            return
        if bool((given == given[0]).all()):
            return
        stayed = min(int((each == given).flatten(1).all(1).sum()) for each in others)
        self._steps[step] = stayed, len(given)
        self._source = self._source or caller()

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self.looked |= {"moves"} if self._steps else set()
        if not self._steps:
            return
        stayed, every = (sum(counts) for counts in zip(*self._steps.values(), strict=True))
        if stayed:
            yield make_probe("moves", stayed, every, step=len(self._steps), source=self._source)


def _gathers(loss: torch.Tensor, values: torch.Tensor) -> bool:
    """Say whether a loss gathers one number for each row of what a network has returned."""
    return any(
        autograd_graph.kind_of(node) == "GatherBackward"
        and node.next_functions[0][0] is values.grad_fn
        and autograd_graph.shape_made(node) == (len(values), 1)
        for node in autograd_graph.below(loss.grad_fn, _NODES)
    )


def _is_table(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has a row for each of some states."""
    rows = tensor.dim() > 1 and has_rows(tensor) and len(tensor) >= _LEAST_ROWS
    return rows and tensor.is_cpu and tensor.is_floating_point()
