"""Watches parameters that modules share: whether moving, loading or wrapping takes them apart."""

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.local_values import local_values, start_of
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_MOST = 65536  # parameters whose places are known
_FRAMES = 12  # outwards, to see who puts another parameter into a module
_REGISTRY = "torch.nn.modules.module"
_Slot = tuple["weakref.ref[nn.Module]", str]  # a module, and what it calls the parameter


@dataclass(slots=True)
class _Tie:
    """
    The places of one parameter, and the line that shared it.

    loaded: whether a load has put another one into a place. alike: whether those that stand there
    now began with the same values.
    """

    places: list[_Slot]
    source: str
    loaded: bool = False
    alike: bool = False

    def parted(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Return two parameters that stand in its places and have no memory in common."""
        held = [p for module, key in self.places if (p := _held(module, key)) is not None]
        for other in held[1:]:
            if other is not held[0] and _start(other) != _start(held[0]):
                return held[0], other
        return None


class Ties(Watcher):
    """
    The Probe events "tied", one for each parameter that modules shared and that came apart.

    reference: 1 where it is known that nobody meant that, 0 where a state with two values was
    loaded. What the user's own lines, or a library, put into a module instead was meant.
    """

    makes = ("Probe:tied",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[int, list[_Slot]] = {}
        self._ties: list[_Tie] = []
        self._apart: list[_Tie] = []
        self._found: list[Probe] = []

    def install(self, patches: Patches) -> None:
        """Listen to what is registered with modules."""
        patches.on_undo(register_module_parameter_registration_hook(self._register).remove)

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """See before the first step of an optimizer which of its parameters came apart."""
        if window.index == 0 and self._ties:
            self.looked.add("tied")
            own = {id(parameter) for parameter in window.parameters}
            for tie in self._ties:
                two = tie.parted()
                if two is not None and tie not in self._apart and own & {id(p) for p in two}:
                    tie.alike = _are_equal(*two)
                    self._apart.append(tie)
        return {}

    @now_and_then
    def after_step(self, window: Window) -> Columns:
        """See whether the values of those that came apart differ."""
        for tie in self._apart if window.is_surveyed else ():
            two = tie.parted()
            if two is not None and not _are_equal(*two):
                self._tell(tie, *two)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what came apart."""
        return self._found

    def _tell(self, tie: _Tie, one: nn.Parameter, other: nn.Parameter) -> None:
        """Tell of a parameter that has become two."""
        self._apart = [each for each in self._apart if each is not tie]
        self._ties.remove(tie)
        names = self.recorder.names
        alike = _shape(one) == _shape(other)
        self._found.append(
            Probe(
                probe="tied",
                measured=2.0,
                reference=float(alike and (tie.alike or not tie.loaded)),
                step=self.recorder.steps,
                label=f"{names.parameter(one)} and {names.parameter(other)}",
                source=tie.source,
            )
        )

    @shielded
    def _register(self, module: nn.Module, key: str, parameter: nn.Parameter) -> None:
        """Take down where a parameter is put, and what stood there in the place of a shared one."""
        if not self.recorder.patches.active:
            return
        if self._ties and key in module._parameters:  # noqa: SLF001 the public ones may be overridden
            self._replace(module, key)
        places = self._places.get(id(parameter), [])
        places = [at for at in places if _held(*at) is parameter and _is_other(at, module, key)]
        place = (weakref.ref(module), key)
        if len(self._places) < _MOST or places:
            self._places[id(parameter)] = [*places, place]
        if places:
            self._ties = [tie for tie in self._ties if not set(tie.places) <= {*places, place}]
            self._ties.append(_Tie([*places, place], caller(2)))

    def _replace(self, module: nn.Module, key: str) -> None:
        """Forget a place of a shared parameter where somebody puts another one on purpose."""
        ties = [t for t in self._ties if not all(_is_other(at, module, key) for at in t.places)]
        if not ties:
            return
        loads, torch_does = _who_registers()
        for tie in ties:
            tie.loaded = tie.loaded or loads
            if not torch_does:
                tie.places = [at for at in tie.places if _is_other(at, module, key)]


def _who_registers() -> tuple[bool, bool]:
    """Return whether a state is being loaded, and whether torch itself registers a parameter."""
    frame = sys._getframe(2)  # noqa: SLF001 the way that is cheap
    for _ in range(_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "_load_from_state_dict":
            return True, True
        if module != _REGISTRY and not module.startswith("trainguard."):
            return False, module.startswith("torch.")
    return False, False


def _held(module: "weakref.ref[nn.Module]", key: str) -> nn.Parameter | None:
    """Return what a module holds under a name, or None."""
    alive = module()
    held: dict[str, nn.Parameter | None] = {} if alive is None else alive._parameters  # noqa: SLF001
    return held.get(key)


def _is_other(place: _Slot, module: nn.Module, key: str) -> bool:
    """Say whether a place is another one than that of a module."""
    return place[1] != key or place[0]() is not module


def _start(parameter: torch.Tensor) -> int:
    """Return where the local values of a parameter lie."""
    values = local_values(parameter)
    return id(parameter) if values is None else start_of(values)


def _shape(parameter: torch.Tensor) -> Any:
    """Return the local shape of a parameter."""
    values = local_values(parameter)
    return None if values is None else values.shape


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two parameters have the same values, as far as this process holds them."""
    first, second = local_values(one), local_values(other)
    if first is None or second is None:
        return True
    return first.shape == second.shape and torch.equal(first, second.to(first.device))
