"""Watches for gradients that one optimizer has used, and that another one steps with as well."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Forward, Window, gradient_of
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_STEPS = 64  # of an optimizer that are looked at
_MOST_NODES = 4000  # of a graph
_ROOM = 2**20  # elements of gradients that are kept for the time of one backward
_OUTPUTS = 8  # of modules, whose gradients are kept
_COMPARED = 4  # of them from both losses, at least
_NEARLY = 0.9
_AGAINST = -0.3  # cosine of two gradients of many parameters: chance gives 0


@dataclass(slots=True, eq=False)
class _Delivery:
    """
    What a backward left at one optimizer.

    version: of the gradient of one parameter, by which it is seen whether it is still the same.
    used: the other optimizer that has stepped with what this backward gave to it.
    """

    source: str
    reached: list[Window]
    parameter: weakref.ref[torch.Tensor]
    version: tuple[int, int]
    used: Window | None = None

    @property
    def is_untouched(self) -> bool:
        """Whether the gradient is what that backward left."""
        parameter = self.parameter()
        return parameter is not None and _version(parameter) == self.version


@dataclass(slots=True)
class _Leak:
    """
    The steps of one optimizer with gradients of a loss that another has used.

    cosines: of what was there and what was added to it. through: whether the loss reaches one of
    the two through what the other one holds; None while that is not known.
    """

    user: Window
    holder: Window
    backward: str
    source: str
    step: int
    cosines: list[torch.Tensor] = field(default_factory=list)
    through: bool | None = None


class _Pulls:
    """Which way the losses from two lines pull at what a module returns for the same input."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self._products: dict[frozenset[str], list[torch.Tensor]] = {}

    def add(self, place: tuple[int, int], source: str, gradient: torch.Tensor) -> None:
        """Take in what a backward from a line gives to an output."""
        known = self._latest.setdefault(place, {})
        for other, pull in known.items():
            if other != source and pull.shape == gradient.shape:
                product = (pull * gradient).sum().detach()
                self._products.setdefault(frozenset({other, source}), []).append(product)
        known[source] = gradient.detach().clone()
        if len(self._latest) > _OUTPUTS:
            del self._latest[next(iter(self._latest))]

    def are_opposed(self, one: str, other: str) -> bool | None:
        """Say whether two lines nearly always pull in opposite ways; None if that is not known."""
        products = self._products.get(frozenset({one, other}), [])
        if len(products) < _COMPARED:
            return None
        return sum(float(p) < 0 for p in products) >= _NEARLY * len(products)


class LeakedGradients(Watcher):
    """
    The Probe event "leaked": steps with the gradients of another optimizer's loss.

    Only of losses that pull the other way than what the optimizer is stepped for: at what a module
    returns for the same input, or at its parameters.
    """

    makes = ("Probe:leaked",)
    relies_on = ("Batches", "Gradients")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._arrivals: dict[int, _Delivery] = {}
        self._leaks: dict[tuple[int, str], _Leak] = {}
        self._pulls = _Pulls()
        self._source = ""  # of the backward that is going on
        self._kept: list[tuple[Window, _Delivery, list[tuple[torch.Tensor, torch.Tensor]]]] = []

    def install(self, patches: Patches) -> None:
        """Ask for the watcher that knows what is given."""
        self._batches = self.recorder.watcher(Batches)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask to be told how a loss pulls at an output."""
        if not self.recorder.given or not self._several():
            return
        first = self.recorder.given[0]
        made = next((t for t in tensors_in(output) if t.grad_fn is not None), None)
        if made is None or made.numel() > _ROOM:
            return
        place = id(module), fingerprint([self._batches.on_host(first)])
        if not place[1]:
            return
        made.register_hook(lambda gradient: self._on_pull(place, gradient))  # type: ignore[no-untyped-call]

    @shielded
    def _on_pull(self, place: tuple[int, int], gradient: torch.Tensor) -> None:
        """Take down how the loss that goes backward now pulls at an output."""
        if self._source and self.recorder.patches.live:  # not where we ask for gradients ourselves
            self._pulls.add(place, self._source, gradient)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Keep what is there of a loss that another optimizer has stepped with."""
        self._kept = []
        self._source = caller() if (windows := self._several()) else ""
        for window in windows:
            arrival = self._arrivals.get(id(window))
            if arrival is not None and arrival.used is not None and arrival.is_untouched:
                self._kept.append((window, arrival, _own_gradients(window, arrival.used)))
        unknown = [leak for leak in self._leaks.values() if leak.through is None]
        if unknown and loss.grad_fn is not None:
            for leak in unknown:
                if leak.backward == self._source:
                    leak.through = _passes_through(loss, leak.holder, leak.user)
                    leak.through |= _passes_through(loss, leak.user, leak.holder)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Compare what was added with what was there, and take down what has arrived."""
        source, self._source = self._source, ""
        reached = [window for window in self._several() if window.reached] if source else []
        for window, arrival, before in self._kept:
            if window.reached and arrival.used is not None:
                self._add(window, arrival.used, arrival.source, source, before)
        self._kept = []
        for window in reached:
            mine = next((p for p in window.parameters if gradient_of(p) is not None), None)
            if mine is not None:
                arrival = _Delivery(source, reached, weakref.ref(mine), _version(mine))
                self._arrivals[id(window)] = arrival

    def after_step(self, window: Window) -> Columns:
        """Note that an optimizer has used what it and others got of one backward."""
        self._arrivals.pop(id(window), None)
        for arrival in self._arrivals.values():
            if arrival.used is None and any(window is each for each in arrival.reached):
                arrival.used = window
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for leak in self._leaks.values():
            against = self._pulls.are_opposed(leak.backward, leak.source)
            cosine = median(float(each) for each in leak.cosines)
            if (
                leak.through
                and leak.holder.name
                and (cosine <= _AGAINST if against is None else against)
            ):
                yield Probe(
                    probe="leaked",
                    measured=float(len(leak.cosines)),
                    reference=float(leak.holder.index),
                    step=leak.step,
                    label=f"{leak.holder.name} {leak.user.name} {Path(leak.backward).name}",
                    source=leak.source,
                )

    def _several(self) -> Sequence[Window]:
        """Return the optimizers, where there are several whose steps are still looked at."""
        windows = self.recorder.windows
        return windows if len(windows) > 1 and windows[0].index <= _STEPS else ()

    def _add(
        self,
        window: Window,
        used: Window,
        backward: str,
        source: str,
        before: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Add how two losses pull at the parameters of an optimizer that got the other's too."""
        pairs = [(was, g - was) for p, was in before if (g := gradient_of(p)) is not None]
        if not pairs or window.optimizer is None or used.optimizer is None:
            return
        new = _Leak(used, window, backward, source, window.index)
        leak = self._leaks.setdefault((id(window), backward), new)
        with torch.no_grad():
            one, other = (
                torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True)
            )
            leak.cosines.append(torch.cosine_similarity(one, other, 0).detach())


def _version(parameter: torch.Tensor) -> tuple[int, int]:
    """Return what tells the gradient of a parameter from another one, and from itself edited."""
    gradient = gradient_of(parameter)
    return (0, 0) if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001


def _own_gradients(window: Window, other: Window) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return copies of the gradients that one optimizer holds, and the other does not."""
    theirs, room, kept = {id(p) for p in other.parameters}, _ROOM, []
    for parameter in window.parameters:
        gradient = gradient_of(parameter)
        if gradient is None or id(parameter) in theirs or gradient.layout != torch.strided:
            continue
        room -= gradient.numel()
        if room >= 0:
            kept.append((parameter, gradient.detach().clone()))
    return kept


def _passes_through(loss: torch.Tensor, holder: Window, user: Window) -> bool:
    """Say whether a loss comes to what one optimizer holds through operations with the other's."""
    theirs = {id(p) for p in user.parameters}
    own = {id(p) for p in holder.parameters} - theirs
    for count, node in enumerate(autograd_graph.below(loss.grad_fn, _MOST_NODES)):
        if count >= _MOST_NODES - 1:
            return False
        if any(_is_leaf_of(before, own) for before, _ in node.next_functions):
            below = autograd_graph.below(node, _MOST_NODES)
            if any(id(getattr(each, "variable", None)) in theirs for each in below):
                return True
    return False


def _is_leaf_of(node: autograd_graph.Node, parameters: set[int]) -> bool:
    """Say whether an operand is one of some parameters, perhaps transposed."""
    for _ in range(2):
        if node is None:
            return False
        if hasattr(node, "variable"):
            return id(node.variable) in parameters
        edges = node.next_functions
        node = edges[0][0] if len(edges) == 1 else None
    return False
