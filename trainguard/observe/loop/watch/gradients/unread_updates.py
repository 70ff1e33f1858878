"""Watches for gradients that can be learned through, and that no loss is made of."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, user_frames, variables_of

_STEPS = {0, 1, 2, 4, 8, 16, 32}  # that are looked at
_MOST_NODES = 20000  # of a loss
_MOST_WAITING = 64  # calls, as of many tasks in one step
_PATIENCE = 2  # steps of each optimizer that a gradient may wait for its loss
_NEAR = 4  # operations between a gradient and a parameter that was moved along it
_FRAMES = 3  # of the user's code in which what was moved is looked for
_VALUES = 64  # of variables, and of what a list or dictionary has
_MARK = "trainguard: gradient with a graph"
_MOVES = {"AddBackward", "SubBackward", "AddcmulBackward"}


@dataclass(slots=True, eq=False)
class _GradientCall:
    """
    One call of torch.autograd.grad with create_graph=True.

    leaves: ids of the parameters of optimizers that it is with respect to, at last.
    before: one of these, and its first numbers: what somebody writes into it may be the update.
    name: that of a variable that has what was moved along the gradient.
    passed: whether a backward reached the parameters, and not the gradient.
    """

    source: str
    step: int
    leaves: set[int]
    before: tuple[torch.Tensor, torch.Tensor] | None
    name: str = ""
    passed: bool = False
    spent: bool = False
    inner: "list[_GradientCall]" = field(
        default_factory=list
    )  # whose gradients this one is made of

    def spend(self) -> None:
        """Take it for spent, and what it is made of."""
        self.spent = True
        for call in self.inner:
            if not call.spent:
                call.spend()

    def forget_values(self) -> None:
        """Take the parameter as it is now: what a step moves, nobody else has written."""
        if self.before is not None:
            self.before = self.before[0], _first(self.before[0]).clone()


@dataclass(slots=True)
class _GradientLine:
    """What came of the calls of one line: in how many steps it was called, and was in vain."""

    steps: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    spent: bool = False
    name: str = ""

    def add(self, call: _GradientCall) -> None:
        """Take down what came of a call."""
        self.steps.add(call.step)
        # What was moved and is in no loss may be read without its graph: to the first order.
        self.spent |= call.spent or (bool(call.name) and not call.passed)
        if call.name and call.passed:
            self.moved.add(call.step)
            self.name = self.name or call.name


class UnreadUpdates(Watcher):
    """
    The Probe event "unread": lines that compute gradients with a graph, which no loss ever has.

    The label is the name of a variable with parameters that were moved along them, where there is
    one, while the loss that went backward was made of the parameters as they had been.
    """

    makes = ("Probe:unread",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._waiting: list[_GradientCall] = []
        self._lines: dict[str, _GradientLine] = {}
        self._stepped: set[int] = set()  # those of the steps looked at that were made

    def install(self, patches: Patches) -> None:
        """Learn of gradients that are computed with a graph."""
        patches.replace(torch.autograd, "grad", self._computing)

    def forward(self, forward: Forward, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Look for the name of what was moved, while the function that has it is running."""
        for call in self._waiting:
            self._look_for_name(call)

    def before_backward(self, loss: torch.Tensor) -> None:
        """See which of the gradients a loss has."""
        if self._waiting and loss.grad_fn is not None:
            for call in self._waiting:
                self._look_for_name(call)
            self._spend(loss, backward=True)

    def after_step(self, window: Window) -> Columns:
        """Give up on gradients whose loss would have come by now."""
        if self.recorder.steps in _STEPS:
            self._stepped.add(self.recorder.steps)
        for call in self._waiting:
            call.forget_values()
        if self._waiting:
            going = sum(1 for each in self.recorder.windows if each.index) or 1
            late = self.recorder.steps - _PATIENCE * going
            for call in [call for call in self._waiting if call.spent or call.step < late]:
                self._close(call)
        elif self.recorder.steps > max(_STEPS):
            self.recorder.dismiss(self)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the lines none of whose gradients ever was in a loss."""
        for call in self._waiting[:]:
            self._close(call)
        self.looked |= {"unread"} if self._lines else set()
        for source, line in self._lines.items():
            if not line.spent:
                yield Probe(
                    probe="unread",
                    measured=float(len(line.steps)),
                    reference=float(len(self._stepped)),
                    label=line.name if line.moved == line.steps else "",
                    source=source,
                )

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.autograd.grad` that marks what it returns with a graph."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Do what the original does."""
            with_graph = kwargs.get("create_graph", args[3] if len(args) > 3 else False)
            away = compiling() or is_transforming()  # torch.func asks for a graph in any case
            if away or self.recorder.backward or not self.recorder.patches.live:
                return original(outputs, *args, **kwargs)
            marks = with_graph and self.recorder.steps in _STEPS
            inner = (self._read(outputs, spends=not marks) or []) if self._waiting else []
            result = original(outputs, *args, **kwargs)
            if marks:
                self._take(result, args[0] if args else kwargs.get("inputs"), inner)
            return result

        return wrapper

    @shielded
    def _read(self, outputs: Any, *, spends: bool) -> list[_GradientCall]:
        """
        Return the gradients that others are computed of.

        spends: whether that is the end of it; those that are waited for are spent when these are.
        """
        found: list[_GradientCall] = []
        if not _is_sequence(outputs):
            return found
        for output in (outputs,) if isinstance(outputs, torch.Tensor) else outputs:
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                found += self._spend(output, spends=spends)
        return found

    @shielded
    def _take(self, result: Any, inputs: Any, inner: list[_GradientCall]) -> None:
        """Mark gradients, and wait for what becomes of them."""
        nodes: list[Node] = [
            g.grad_fn for g in result if isinstance(g, torch.Tensor) and g.grad_fn is not None
        ]
        if not nodes or len(self._waiting) >= _MOST_WAITING or not _is_sequence(inputs):
            for call in inner:
                call.spend()
            return
        held = {id(p) for window in self.recorder.windows for p in window.parameters}
        leaves = [leaf for leaf in _leaves_of(inputs) if id(leaf) in held]
        before = (leaves[0], _first(leaves[0]).clone()) if leaves else None
        call = _GradientCall(caller(2), self.recorder.steps, set(map(id, leaves)), before)
        call.inner = inner
        for node in nodes:
            node.metadata[_MARK] = call
        self._waiting.append(call)

    def _spend(
        self, root: torch.Tensor, *, backward: bool = False, spends: bool = True
    ) -> list[_GradientCall]:
        """Take down which gradients, and which parameters, something is computed of."""
        reached: set[int] = set()
        found: list[_GradientCall] = []
        for count, node in enumerate(autograd_graph.below(root.grad_fn, _MOST_NODES)):
            call = node.metadata.get(_MARK)
            if call is not None or count >= _MOST_NODES - 1:
                found += self._waiting if call is None else [call]
            reached.add(id(getattr(node, "variable", None)))
        for each in self._waiting:
            each.passed |= backward and not reached.isdisjoint(each.leaves)
        for each in found if spends else ():
            each.spend()
        return found

    def _look_for_name(self, call: _GradientCall) -> None:
        """Find the variable that has what was moved along a gradient, unless it was written."""
        if call.before is None or call.spent:
            return
        parameter, values = call.before
        call.spent |= not torch.equal(_first(parameter), values)
        if not call.name:
            call.name = next(_names_of(call), "")

    def _close(self, call: _GradientCall) -> None:
        """Take down what came of a call."""
        self._waiting.remove(call)
        call.before = None
        self._lines.setdefault(call.source, _GradientLine()).add(call)


def _is_sequence(given: Any) -> bool:
    """Say whether outputs or inputs can be read once more: a generator would be empty then."""
    return isinstance(given, torch.Tensor | list | tuple) or hasattr(given, "__len__")


def _first(parameter: torch.Tensor) -> torch.Tensor:
    """Return the first numbers of a parameter."""
    return parameter.detach().reshape(-1)[:_VALUES]


def _leaves_of(inputs: Any) -> Iterator[torch.Tensor]:
    """Yield the leaves that gradients are with respect to, or that these were moved from."""
    for tensor in (inputs,) if isinstance(inputs, torch.Tensor) else inputs:
        if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
            yield tensor
        elif isinstance(tensor, torch.Tensor) and kind_of(tensor.grad_fn) in _MOVES:
            for node in autograd_graph.below(tensor.grad_fn, _VALUES):
                if hasattr(node, "variable"):
                    yield node.variable


def _names_of(call: _GradientCall) -> Iterator[str]:
    """Yield the names of variables of the user's that have what was moved along a gradient."""
    for frame in user_frames(_FRAMES):
        for name, value in list(variables_of(frame).items())[-_VALUES:]:
            if name != "_" and any(_is_moved(tensor, call) for tensor in _tensors_of(value)):
                yield name


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """Return a tensor, or those of a plain list, tuple or dictionary."""
    if type(value) is dict:
        value = list(value.values())
    each = list(value[:_VALUES]) if type(value) in (list, tuple) else [value]
    return [tensor for tensor in each if type(tensor) is torch.Tensor]


def _is_moved(tensor: torch.Tensor, call: _GradientCall) -> bool:
    """Say whether a tensor is a parameter, or one that was moved before, less a gradient."""
    node: Node = tensor.grad_fn
    if node is None or kind_of(node) not in _MOVES:
        return False
    marked = [_is_along(before, call) for before, _ in node.next_functions]
    leaf = [before is not None and hasattr(before, "variable") for before, _ in node.next_functions]
    moved = [before is not None and kind_of(before) in _MOVES for before, _ in node.next_functions]
    return any(marked) and any((leaf[i] or moved[i]) and not marked[i] for i in range(len(marked)))


def _is_along(node: Node, call: _GradientCall) -> bool:
    """Say whether something is a gradient of a call, times whatever."""
    for _ in range(_NEAR):
        if node is None:
            return False
        if node.metadata.get(_MARK) is call:
            return True
        live = [before for before, _ in node.next_functions if before is not None]
        along = [before for before in live if before.metadata.get(_MARK) is call]
        node = along[0] if along else live[0] if len(live) == 1 else None
    return False
