"""Steps made by hand: parameters that move after a backward though no optimizer holds them."""

import weakref
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainguard.observe.loop.watch.losses import Losses
from trainguard.observe.loop.watch.watcher import Columns
from trainguard.observe.loop.window import Window, gradient_of
from trainguard.observe.tools.local_values import local_values

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_SAMPLED = 8  # parameters looked at, and elements of each


class ManualSteps:
    """
    The window of steps that are made without an optimizer, or with one that is none of torch's.

    It is met only where a backward gave a gradient to parameters that no optimizer holds.
    """

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self.window: Window | None = None
        self._columns: Columns = {}
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._key: tuple[int, ...] = ()
        self._free: list[weakref.ref[nn.Parameter]] = []

    def wait(self) -> None:
        """After a backward, remember what the parameters without an optimizer are worth."""
        loose = self._loose()
        if not loose:
            return
        if self.window is None:
            self.window = self._open()
        if [id(p) for p in loose] != [id(p) for p in self.window.parameters]:
            self.window.parameters = list(loose)
            self.window.received = [1] * len(loose)
            self.window.fresh = False
        self._columns = self.recorder.step_begins(self.window)
        self._before = [(p, _sample(p).clone()) for p in loose[:_SAMPLED]]

    def _open(self) -> Window:
        """Open the window, with what is known of the backward that came before it."""
        latest = self.recorder.watcher(Losses).latest
        window = Window("by hand", order=["forward", "backward"])
        window.losses = [] if latest is None else [latest]
        window.forwards = self.recorder.recent[:]
        self.recorder.windows.append(window)
        return window

    def look(self) -> None:
        """Before the next forward or backward, or at the end, see whether they have moved since."""
        before, self._before = self._before, []
        if self.window is None or not before:
            return
        if self.recorder.faults.look(_have_moved, before):
            self.recorder.step_ends(self.window, self._columns)

    def _loose(self) -> list[nn.Parameter]:
        """Return the parameters of known modules that have a gradient and no optimizer."""
        known = self.recorder.names.parameters()
        optimizers = [o for w in self.recorder.windows if w.optimizer and (o := w.optimizer())]
        sizes = [sum(len(group["params"]) for group in o.param_groups) for o in optimizers]
        key = (len(known), *map(id, optimizers), *sizes)
        if key != self._key:  # looked up again only when models or optimizers changed
            self._key = key
            # Those that are frozen for now are held too.
            held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
            self._free = [weakref.ref(p) for p in known if id(p) not in held]
        free = (ref() for ref in self._free)
        return [p for p in free if p is not None and gradient_of(p) is not None]


def _have_moved(before: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Say whether some parameters differ from what they were."""
    return any(not torch.equal(_sample(p), old) for p, old in before)


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Return the first few elements of a parameter; none of one without memory."""
    values = local_values(parameter)
    return torch.empty(0) if values is None else values.reshape(-1)[:_SAMPLED]
