"""Watches for parts of a model that its output depends on, and that no gradient comes back to."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.origin import Origin
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Inputs, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen, steady
from trainguard.observe.loop.watch.parameters.initial_draws import is_as_drawn
from trainguard.observe.loop.watch.watcher import Columns, shielded_anywhere
from trainguard.observe.loop.window import Forward, Window, gradient_of
from trainguard.observe.tools.patches import Patches, tell_before
from trainguard.observe.tools.user_line import forward_of
from trainguard.observe.tools.written_lines import find_cuts

_FROM = 12  # steps: what gets no gradient in so many of the first ones gets none
_MOST_OUTPUTS = 8
_MOST_MODULES = 4
_FACTOR, _SHIFT = 1.5, 0.1  # an edit that shows, whatever a parameter is worth


@dataclass(frozen=True, slots=True)
class _EditableCall(CopyableCall):
    """
    A call of a copy in which one module may have other parameters.

    edited: names of the modules whose parameters are edited. graphless: those that were called
    where the model itself switches gradients off.
    """

    edited: list[str] = field(default_factory=list)
    graphless: set[str] = field(default_factory=set)

    def call_copy(self, module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        """Call the copy with what is to be edited in it, and put that back."""
        with ExitStack() as undo, torch.enable_grad():
            for name in self.edited:
                part = module.get_submodule(name)
                handle = part.register_forward_pre_hook(lambda _, __, n=name: self._note(n))
                undo.callback(handle.remove)
                for key, parameter in list(part._parameters.items()):  # noqa: SLF001
                    if parameter is not None:
                        undo.callback(part._parameters.__setitem__, key, parameter)  # noqa: SLF001
                        moved = parameter.detach() * _FACTOR + _SHIFT
                        part._parameters[key] = nn.Parameter(moved)  # noqa: SLF001
            return [t.detach() for t in super(_EditableCall, self).call_copy(module, inputs)]

    def _note(self, name: str) -> None:
        """Note that a module was called without gradients, which somebody has asked for."""
        if not torch.is_grad_enabled():
            self.graphless.add(name)


class DetachedProbe(ModuleProbe):
    """
    The Probe event "detached": where no gradient arrives an edit changes what is learned from.

    Only modules that the optimizer holds, that require gradients and are called where those are on.
    Weights that were loaded may be meant to stay: in a run that loads some, only modules with what
    torch has drawn for them.
    """

    makes = ("Probe:detached", "Origin")
    relies_on = ("Forwards",)

    probe = "detached"
    several = True  # what another one's loss reaches has received gradients, as the judge knows

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._reached: set[int] = set()
        self._silent: list[str] = []
        self._held: set[int] = set()
        self._cuts: list[Event] = []
        self._loads = False

    def install(self, patches: Patches) -> None:
        """Be told of weights that are loaded."""
        if self.is_wanted:
            patches.replace(nn.Module, "load_state_dict", tell_before(self._see_loading))
            patches.replace(torch, "load", tell_before(self._see_loading))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the pass, and learn which of its outputs a backward reaches."""
        if self.recorder.steps < _FROM or not self.is_wanted:
            return
        super().forward(forward, module, inputs, output)
        reached = self._reached = set[int]()
        floats = [t for t in tensors_in(output) if t.is_floating_point()]
        for place, tensor in enumerate(floats[:_MOST_OUTPUTS]):
            if forward.gradients and tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _, p=place: reached.add(p))  # type: ignore[no-untyped-call]

    def after_step(self, window: Window) -> Columns:
        """Try it on what this optimizer holds."""
        if self.is_wanted:
            self._held = {id(parameter) for parameter in window.parameters}
        return super().after_step(window)

    def fits(self, call: CopyableCall) -> bool:
        """Say whether some modules are held and got no gradient in a step in which others did."""
        silent, learning = [], False
        loads = self._loads or "safetensors" in sys.modules  # whose readers have many names
        for name, part in call.module.named_modules():
            own = [p for p in part._parameters.values() if p is not None]  # noqa: SLF001
            empty = [gradient_of(p) is None for p in own]
            learning = learning or not all(empty)
            idle = own and all(empty) and all(id(p) in self._held for p in own)
            if idle and (not loads or any(is_as_drawn(part, p) for p in own)):
                silent.append(name)
        self._silent = silent[:_MOST_MODULES]
        return bool(silent) and learning and bool(self._reached)

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Edit one silent module after the other, until an output changes that is learned from."""
        assert isinstance(call, _EditableCall)
        first = [run(call.inputs)[place] for place in sorted(self._reached)]
        limits = [self.reference(call, output) for output in first]
        for name in self._silent:
            again = [run(call.inputs)[place] for place in sorted(self._reached)]
            call.edited.append(name)
            after = [run(call.inputs)[place] for place in sorted(self._reached)]
            call.edited.clear()
            for one, same, other, limit in zip(first, again, after, limits, strict=True):
                changed = difference([one], [other])
                if steady(one, same, limit) and changed > limit and name not in call.graphless:
                    return Seen(changed, limit, name)
        return None

    def _look_at_copy(self, call: CopyableCall) -> Seen | None:
        """Return what is seen on a copy that can be edited."""
        parts = call.module, call.inputs, call.keywords, call.casts
        seen = super()._look_at_copy(_EditableCall(*parts))
        if seen is not None:
            part = call.module.get_submodule(seen.part)
            name = f"cut {self.recorder.names.module(part)}"
            lines = find_cuts(map(forward_of, _path_to(call.module, seen.part)))
            self._cuts = [Origin(name=name, source=line) for line in lines]
        return seen

    def finish(self) -> Iterable[Event]:
        """Return what was found, and the lines that may be the reason."""
        return [*super().finish(), *self._cuts]

    @shielded_anywhere
    def _see_loading(self, *_: Any, **__: Any) -> None:
        """Take down that weights are loaded."""
        self._loads |= self.recorder.patches.active


def _path_to(root: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield a module and those in it that lead to a part of it."""
    yield root
    inner = root
    for key in filter(None, name.split(".")):
        inner = inner.get_submodule(key)
        yield inner
