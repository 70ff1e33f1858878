"""Watches what a run keeps more and more of: graphs, old steps in them, hooks, handlers."""

import logging
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.loop import RunGrowth
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.user_line import caller

_MARK = "trainguard_kept"  # at nodes of the graph
_STEP = "trainguard_step"
_MOST_GRAPHS = 4096
_MOST_LOOKS = 64
_MANY = 24  # graphs that one variable holds: more than those of a step or two
_STALE = 8  # steps whose graphs are held
_MOST_NODES = 2000
_DEEPEST = 20000  # nodes of a loss in which earlier steps are looked for
_GIVEN_UP = 8  # steps after which it is known that there are none
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)


class _Mark:
    """What is left at a node of a graph, and is deleted with it."""

    __slots__ = ("__weakref__",)


class Growing(Watcher):
    """
    The RunGrowth events of graphs, hooks and handlers, looked at on surveyed steps.

    And those of "history": how many nodes are behind the loss of steps 1, 2, 4, 8, ... and whether
    some of them were behind that of the look before.
    """

    makes = ("RunGrowth",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._graphs: list[tuple[int, weakref.ref[_Mark], str]] = []  # and the line of the pass
        self._made: list[int] = []  # the steps at which graphs were made
        self._rows: dict[str, list[tuple[int, int, int, str, str]]] = {}
        self._looked = self._traced = -1
        self._reaches_back = False
        self._holder = ""

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Leave a mark at the graph of an output."""
        node = _node_of(output) if forward.gradients else None
        if node is None or len(self._made) >= _MOST_GRAPHS or _MARK in node.metadata:
            return
        node.metadata[_MARK] = mark = _Mark()
        self._graphs.append((self.recorder.steps, weakref.ref(mark), forward.source))
        self._made.append(self.recorder.steps)

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """See whether a loss has nodes of earlier steps behind it."""
        step, last = self.recorder.steps, self._traced
        due = step > max(0, last) and not step & (step - 1)
        if not due or (step > _GIVEN_UP and not self._reaches_back) or loss.grad_fn is None:
            return
        self._traced, nodes, known = step, 0, False
        for node in autograd_graph.below(loss.grad_fn, _DEEPEST):
            if hasattr(node, "variable"):
                continue  # a leaf has the same node for as long as anybody keeps it
            nodes += 1
            made = node.metadata.get(_STEP)
            known = known or (made is not None and made == last)
            if made is None and nodes <= _MOST_NODES:
                node.metadata[_STEP] = step
        self._reaches_back = self._reaches_back or known
        self._add("history", step, nodes, int(known), "", caller() if known else "")

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """Look at what there is, at the same steps whatever optimizers there are."""
        step = self.recorder.steps
        if not window.is_surveyed or step <= self._looked:
            return {}
        self._looked = step
        self._graphs = [kept for kept in self._graphs if kept[1]() is not None]
        # The graphs of this round of all optimizers and of the one before may still be waited for.
        late = step - 2 * max(1, sum(w.index > 0 for w in self.recorder.windows))
        old = [made for made, _, _ in self._graphs if made < late]
        source = next((source for made, _, source in reversed(self._graphs) if made < late), "")
        stale = len(set(old))
        if (len(old) >= _MANY or stale >= _STALE) and not self._holder:
            self._holder = _find_holder()
        self._add(
            "graphs", step, len(old), sum(made < late for made in self._made), self._holder, source
        )
        self._add("stale", step, stale, 0, self._holder, source)
        self._add("hooks", step, *_count_hooks(self.recorder.names))
        self._add("handlers", step, *_count_handlers())
        return {}

    def finish(self) -> Iterator[Event]:
        """Return what was counted of each kind."""
        for kind, rows in self._rows.items():
            steps, counts, among, names, sources = zip(*rows, strict=True)
            yield RunGrowth(
                kind=kind,
                steps=steps,
                counts=counts,
                among=among,
                name=names[-1],
                source=sources[-1],
            )

    def _add(
        self, kind: str, step: int, count: int, among: int = 0, name: str = "", source: str = ""
    ) -> None:
        """Take down one count; what changes nothing between two others is left out."""
        rows = self._rows.setdefault(kind, [])
        if len(rows) >= _MOST_LOOKS:
            del rows[1]
        rows.append((step, count, among, name, source))


def _node_of(output: Any) -> Any:
    """Return the node that made the first tensor with a graph in an output."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    values = output.values() if isinstance(output, dict) else output
    parts = values if isinstance(output, dict | list | tuple) else ()
    return next((p.grad_fn for p in parts if isinstance(p, torch.Tensor) and p.grad_fn), None)


def _find_holder() -> str:
    """Return the variable of the user's code that holds many graphs, or nothing."""
    for owner, _, values in find_owners():
        for name, value in values.items():
            if isinstance(name, str) and name[:2] != "__" and _count_graphs(value) >= _STALE:
                return f"{owner}.{name}" if owner else name
    return ""


def _count_graphs(value: Any) -> int:
    """Return how many graphs of outputs a sum of losses, or a list of them, holds."""
    if type(value) is torch.Tensor:
        root = value.grad_fn
        nodes = autograd_graph.below(root, _MOST_NODES) if root is not None else ()
        return sum(_MARK in node.metadata for node in nodes)
    if isinstance(value, list | deque):
        return sum(type(each) is torch.Tensor and each.grad_fn is not None for each in value)
    return 0


def _count_hooks(names: Any) -> tuple[int, int, str, str]:
    """Return the most hooks of one kind on one module or parameter, and whose they are."""
    best: tuple[int, str, Any] = (0, "", None)
    for root in names.roots():
        for module in root.modules():
            for owner in (module, *module._parameters.values()):  # noqa: SLF001
                for kind in _HOOKS if owner is not None else ():
                    hooks = getattr(owner, kind, None)
                    if hooks and len(hooks) > best[0]:
                        best = len(hooks), names.module(module), hooks
    count, name, hooks = best
    return count, 0, name, _place_of(next(reversed(hooks.values()))) if hooks else ""


def _place_of(hook: Any) -> str:
    """Return where a hook is written, or nothing for one that is not Python's."""
    while isinstance(hook, partial):
        hook = hook.func
    code = getattr(hook, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _count_handlers() -> tuple[int, int, str, str]:
    """Return the most handlers of one logger, and which that is."""
    most = logging.getLogger()
    for each in list(logging.Logger.manager.loggerDict.values()):  # there are hundreds
        if isinstance(each, logging.Logger) and len(each.handlers) > len(most.handlers):
            most = each
    return len(most.handlers), 0, most.name, ""
