"""Watches modules that are only asked, step after step, while nothing of them is learned."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.forwards import Forwards
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.user_line import caller

_TENSORS, _NUMBERS = 8, 16  # of the parameters, by which it is known that nothing has moved
_MOST = 64  # modules that are followed


@dataclass(slots=True)
class _Reference:
    """
    A module that is asked without a graph, in training mode; numbers: some of its parameters.

    since: the first step with these numbers. asked: how many watched steps asked it since then, of
    how many (watched); latest: the last of them.
    """

    module: "weakref.ref[nn.Module]"
    numbers: tuple[float, ...]
    since: int
    watched: int
    source: str
    label: str
    asked: int = 0
    latest: int = -1


class FrozenReferences(Watcher):
    """
    The Probe event "reference": steps that ask a module in training mode which never moves.

    It is an outermost one, or a part that the module around it calls without a graph. A teacher
    that is an average moves with its student, and a policy in a rollout is stepped between
    rollouts: what stays as it is bit for bit to the end is no part of the training.
    """

    makes = ("Probe:reference",)
    relies_on = ("Forwards",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._references: dict[int, _Reference] = {}
        self._watched, self._step = 0, -1  # how many steps, and the latest

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down a pass that builds no graph of a module with something awake in it."""
        if any(tensor.requires_grad for tensor in tensors_in(output)):
            self._references.pop(id(module), None)
            for part in self._graphless_parts(module):
                sensitive = self.recorder.watcher(Forwards).sensitive_parts(part)
                awake = [name for each, name in sensitive if each.training]
                self._ask(part, forward.step, awake[0] if part.training and awake else "")
        else:
            awake_first = forward.awake[0] if forward.training and forward.awake else ""
            self._ask(module, forward.step, awake_first)

    def _ask(self, module: nn.Module, step: int, awake: str) -> None:
        """Take down that a module was asked in a step; awake: the first part that is, if any."""
        numbers = _numbers_of(module) if awake else ()
        if not numbers:
            return
        own = self._references.get(id(module))
        if own is None or own.module() is not module or own.numbers != numbers:
            if len(self._references) >= _MOST:
                return
            own = self._references[id(module)] = _Reference(
                weakref.ref(module), numbers, step, self._watched, caller(), awake
            )
        own.asked += own.latest != step
        own.latest = step

    def _graphless_parts(self, module: nn.Module) -> Iterable[nn.Module]:
        """Yield the outermost parts of a module that it calls without a graph."""
        graphless = self.recorder.graphless
        for part in module.children() if graphless else ():
            if id(part) in graphless:
                yield part
            else:
                yield from self._graphless_parts(part)

    def before_step(self, window: Window) -> Columns:
        """Count the steps that are watched, once each where several optimizers may make them."""
        self._watched += self._step != self.recorder.steps
        self._step = self.recorder.steps
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was asked to the end, in most of the steps."""
        for own in self._references.values():
            watched = self._watched - own.watched
            self.looked.add("reference")
            if 2 * own.asked > watched:
                yield Probe(
                    probe="reference",
                    measured=float(min(own.asked, watched)),
                    reference=float(watched),
                    step=own.since,
                    label=own.label,
                    source=own.source,
                )


def _numbers_of(module: nn.Module) -> tuple[float, ...]:
    """Return some numbers of the parameters of a module; none where they are not on the CPU."""
    parameters = [p for _, p in zip(range(_TENSORS), module.parameters(), strict=False)]
    if not all(p.is_cpu and p.is_floating_point() for p in parameters):
        return ()
    return tuple(n for p in parameters for n in p.detach().reshape(-1)[:_NUMBERS].tolist())
