"""Watches what becomes of gradients: a step uses them, somebody reads them, or they are lost."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.affine_parts import SUMS
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.gradients.gradient_reads import (
    SILENT,
    SILENT_NAMES,
    GradientReads,
    is_clearing,
)
from trainguard.observe.loop.watch.gradients.term_gradients import TermGradients
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.patches import Patches, tell_before
from trainguard.observe.tools.user_line import caller, foreign

_MOST_WAITING = 1024  # passes backward without a step, as in a run that only computes gradients
_WATCHED = range(2, 42)  # steps of all optimizers in which terms are looked at one by one
_MOST_TERMS = 8
_MOST_NODES = 4000  # of one term
_SCALES = {"MulBackward", "DivBackward", "NegBackward", "ToCopyBackward"}


@dataclass(frozen=True, slots=True)
class TermReach:
    """
    One term of a loss, and the optimizers that have parameters below it.

    kind: the loss function that returned it, or what autograd calls it. source: where that was
    called. parameter: one that it reaches.
    """

    kind: str
    source: str
    windows: tuple[Window, ...]
    parameter: torch.Tensor


@dataclass(slots=True, eq=False)
class _Arrival:
    """
    The gradients that one backward left at one optimizer: those of one parameter stand for all.

    version: of the gradient, by which it is seen whether anything was done to it since.
    """

    window: Window
    parameter: weakref.ref[torch.Tensor]
    version: int
    cleared: bool = False

    def look(self) -> None:
        """See whether the gradient was cleared: it is gone, or all zeros where it was edited."""
        parameter = self.parameter()
        gradient = None if parameter is None else gradient_of(parameter)
        if gradient is None:
            self.cleared = True
        elif not self.cleared and gradient._version != self.version:  # noqa: SLF001 the only one
            self.cleared = gradient.layout == torch.strided and not bool(gradient.any())

    def adopt(self) -> None:
        """Take a gradient on an accelerator, as it is now, for what has arrived."""
        parameter = self.parameter()
        gradient = None if parameter is None else gradient_of(parameter)
        if gradient is not None and not gradient.is_cpu:
            self.version = gradient._version  # noqa: SLF001 the only one


@dataclass(slots=True, eq=False)
class _Arrivals:
    """What one backward, or one term of its loss, left at the optimizers that it reached."""

    each: list[_Arrival]
    term: "_Term | None" = None


@dataclass(slots=True)
class _Term:
    """How often what a term gave to its optimizers was cleared unused, and how often used."""

    kind: str
    name: str
    source: str
    step: int
    lost: int = 0
    used: int = 0


class SpentGradients(Watcher):
    """
    The columns thrown and thrown_source: passes backward whose gradients were cleared unused.

    And the Probe event "in vain": terms of losses, in the early steps of a run with several
    optimizers, that reach fewer of these than the whole loss: how often their gradients were
    cleared unused, against how often they were used.

    Nothing is counted before gradients were cleared unused for the first time: from there on every
    read of a gradient is looked at, and one by the user's code spends what is there.
    """

    makes = ("thrown", "thrown_source", "Probe:in vain")
    relies_on = ("Gradients", "GradientReads", "TermGradients")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._waiting: list[_Arrivals] = []  # of each backward that nothing used
        self._reaches: list[TermReach] = []  # of the terms of the latest loss
        self._told: dict[tuple[str, str, str], _Term] = {}
        self._alert = False
        self._thrown: dict[int, int] = {}
        self._cleared_at = ""

    def install(self, patches: Patches) -> None:
        """Learn from where gradients are cleared, once that is of interest."""
        patches.replace(Optimizer, "zero_grad", tell_before(self._see_clearing))
        patches.replace(nn.Module, "zero_grad", tell_before(self._see_clearing))
        self._reads = self.recorder.watcher(GradientReads)
        self._terms = self.recorder.watcher(TermGradients)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Count the passes of which no optimizer has a gradient any more."""
        if self._waiting:
            self._look()
        stepping = sum(window.index > 0 for window in self.recorder.windows)
        if stepping > 1 and self.recorder.steps in _WATCHED and loss.grad_fn is not None:
            self._reaches = split_loss(loss, self.recorder.windows)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Wait for what becomes of the gradients that have arrived; hooks may have used them."""
        reached = [window for window in self.recorder.windows if window.reached]
        self._adopt(reached)
        arrivals = [a for window in reached if (a := _arrival_at(window))]
        reaches, self._reaches = self._reaches, []
        # Of a step that nobody watches, it is not heard that it uses what has arrived.
        heard = all(window.is_watched for window in reached)
        if not arrivals or not heard or self._terms.noticed:
            return
        for window in reached:
            window.on_edit = self._on_edit
        self._waiting = [*self._waiting[1 - _MOST_WAITING :], _Arrivals(arrivals)]
        for reach in reaches:
            own = [a for a in arrivals if any(a.window is window for window in reach.windows)]
            if len(own) == len(reach.windows):
                self._waiting.append(_Arrivals(own, self._term_of(reach)))

    def _term_of(self, reach: TermReach) -> _Term:
        """Return what is counted of a term: by what it is, where, and what it reaches."""
        holder = self.recorder.names.holder(reach.parameter)
        name = holder.partition(".")[0] or self.recorder.names.parameter(reach.parameter)
        source = reach.source or caller()
        new = _Term(reach.kind, name, source, self.recorder.steps)
        return self._told.setdefault((reach.kind, name, source), new)

    @shielded
    def _on_edit(self, window: Window) -> None:
        """Take edits by torch for no clearing, where a look at gradients would be waited for."""
        self._adopt([window])

    def before_step(self, window: Window) -> Columns:
        """Spend all that has arrived and is still there; a step by hand is not made yet."""
        if self._waiting and window.optimizer is not None:
            self._look()
            self._spend(window)
        return {}

    def after_step(self, window: Window) -> Columns:
        """Tell how many passes backward were in vain."""
        self._spend(window)
        thrown = self._thrown.pop(id(window), 0)
        return {"thrown": thrown, "thrown_source": self._cleared_at} if thrown else {}

    def finish(self) -> Iterable[Event]:
        """Return the terms whose gradients were cleared unused."""
        for term in self._told.values():
            if term.lost:
                yield Probe(
                    probe="in vain",
                    measured=float(term.lost),
                    reference=float(term.used),
                    step=term.step,
                    label=f"{term.kind} {term.name}",
                    source=term.source,
                )

    def _adopt(self, windows: list[Window]) -> None:
        """Take the gradients of some optimizers as they are now for what has arrived there."""
        for arrival in (a for arrivals in self._waiting for a in arrivals.each):
            if any(arrival.window is window for window in windows):
                arrival.adopt()

    def _look(self) -> None:
        """Drop the passes whose gradients are gone at all the optimizers that they reached."""
        for arrivals in self._waiting[:]:
            for arrival in arrivals.each:
                arrival.look()
            if all(arrival.cleared for arrival in arrivals.each):
                self._waiting.remove(arrivals)
                self._count(arrivals)

    def _count(self, arrivals: _Arrivals) -> None:
        """Count a pass in vain; after the first one, look at who reads gradients."""
        if self._alert and arrivals.term is not None:
            arrivals.term.lost += 1
        elif self._alert:
            for arrival in arrivals.each:
                key = id(arrival.window)
                self._thrown[key] = self._thrown.get(key, 0) + 1
        self._alert = True
        # Gradients are read a hundred times in a step: mostly nothing waits for that.
        self._reads.on_read = lambda frame: self._read(frame) if self._waiting else None

    def _spend(self, window: Window | None = None) -> None:
        """Forget the passes whose gradients a step of a window, or somebody, has used."""
        kept = []
        for arrivals in self._waiting:
            if window is not None and all(a.window is not window for a in arrivals.each):
                kept.append(arrivals)
            elif arrivals.term is not None:
                arrivals.term.used += 1
        self._waiting = kept

    @shielded
    def _read(self, frame: FrameType) -> None:
        """Take all that is there as used, where a line of the user's code reads a gradient."""
        if self._waiting and self.recorder.is_looking() and _is_for_use(frame):
            self._look()
            self._spend()

    @shielded
    def _see_clearing(self, *_: Any, **__: Any) -> None:
        """Note where a `zero_grad` is called."""
        if self._alert and self.recorder.patches.live and self._waiting:
            self._note_clearing()

    @shielded
    def _note_clearing(self) -> None:
        """Take down the line that clears gradients."""
        self._cleared_at = caller()


def _is_for_use(frame: FrameType) -> bool:
    """Say whether a gradient is read by the user's code, other than to clip or to clear it."""
    inner: FrameType | None = frame
    while inner is not None and not foreign(inner.f_code.co_filename):
        code = inner.f_code
        if code.co_name in SILENT_NAMES or SILENT.search(code.co_filename):
            return False
        if "clip_grad" in code.co_filename:
            return False
        inner = inner.f_back
    return inner is not None and not is_clearing(inner.f_code.co_filename, inner.f_lineno)


def _arrival_at(window: Window) -> _Arrival | None:
    """Return what a backward left at an optimizer, unless a hook may have used it already."""
    for parameter, (known, version) in zip(window.parameters, window.marks, strict=True):
        gradient = gradient_of(parameter)
        if gradient is None or (id(gradient), gradient._version) == (known, version):  # noqa: SLF001
            continue
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):  # noqa: SLF001
            return None
        return _Arrival(window, weakref.ref(parameter), gradient._version)  # noqa: SLF001
    return None


def split_loss(loss: torch.Tensor, windows: Sequence[Window]) -> list[TermReach]:
    """Return the terms that reach fewer optimizers than the whole; none where that is not known."""
    nodes = list(_terms(loss.grad_fn))
    if not 2 <= len(nodes) <= _MOST_TERMS:
        return []
    owners = {id(p): window for window in windows for p in window.parameters}
    reaches = []
    for node in nodes:
        reached: dict[int, tuple[Window, torch.Tensor]] = {}
        for count, below in enumerate(autograd_graph.below(node, _MOST_NODES)):
            leaf = getattr(below, "variable", None)
            if count >= _MOST_NODES - 1:
                return []
            if leaf is not None and id(leaf) in owners:
                reached.setdefault(id(owners[id(leaf)]), (owners[id(leaf)], leaf))
        reaches.append((node, reached))
    whole = set().union(*(reached for _, reached in reaches))
    return [_describe(node, r) for node, r in reaches if r and len(r) < len(whole)]


def _describe(node: Node, reached: dict[int, tuple[Window, torch.Tensor]]) -> TermReach:
    """Return a term with its name and the optimizers that it reaches."""
    token = autograd_graph.token_at(node)
    kind = token[0].function if token else autograd_graph.kind_of(node).removesuffix("Backward")
    windows, parameters = zip(*reached.values(), strict=True)
    return TermReach(kind, token[0].source if token else "", windows, parameters[0])


def _terms(root: Node) -> Iterator[Node]:
    """Yield the nodes that a loss is the sum of, but for constant factors."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        live = [before for before, _ in node.next_functions if before is not None]
        kind = autograd_graph.kind_of(node)
        if autograd_graph.token_at(node) is None and (
            kind in SUMS or (kind in _SCALES and len(live) == 1)
        ):
            waiting += live
        else:
            yield node
