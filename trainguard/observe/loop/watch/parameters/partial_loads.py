"""Watches loads that leave out what was trained: models whose parts are of different steps."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.local_values import has_memory, local_values
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_NAMES = 512  # parameters of a module whose numbers are kept
_KEPT = 64  # of the latest states
_TAKEN = 256  # states that are looked at: an average that takes one in each step ends here
_MOST = 16  # findings


@dataclass(slots=True)
class _PastState:
    """A number of each parameter of a module after some steps, and which of them were trained."""

    module: "weakref.ref[nn.Module]"
    kind: type
    step: int
    numbers: dict[str, float]
    trained: set[str]


@dataclass(slots=True)
class _PartialLoad:
    """
    A load of a past state that has left out what was trained with it.

    is_same: whether the module is the one that was trained. evaluated: whether it was since.
    """

    module: "weakref.ref[nn.Module]"
    state: _PastState
    left_out: list[str]
    is_same: bool
    step: int
    name: str
    source: str
    evaluated: bool = False


class PartialLoads(Watcher):
    """
    The Probe event "partial", of modules that were evaluated after such a load and trained no more.

    measured: how many parameters were left out. reference: 1 where the module had trained them
    further, 0 where it is another one that has them as they were made.
    """

    makes = ("Probe:partial",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._past: list[_PastState] = []
        self._seen: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._left = _TAKEN
        self._stepped: dict[int, weakref.ref[torch.Tensor]] = {}  # parameters, by their ids
        self._loads: list[_PartialLoad] = []

    def install(self, patches: Patches) -> None:
        """Listen to what takes and loads states."""
        patches.replace(nn.Module, "state_dict", tell_after(self._see_taken))
        patches.replace(nn.Module, "load_state_dict", self._loading)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Drop the loads of what is trained further, and see which are evaluated."""
        for load in self._loads[:]:
            loaded = load.module()
            if loaded is None or all(part is not loaded for part in module.modules()):
                continue
            if forward.gradients:
                self._loads.remove(load)
            load.evaluated = True

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the state that is evaluated: the best of them may be loaded again."""
        if self._seen.get(module) != self.recorder.steps:
            self._seen[module] = self.recorder.steps
            self._remember(module)

    def after_step(self, window: Window) -> Columns:
        """Remember what is trained: its optimizer may be gone when a state of it is taken."""
        if window.is_surveyed:
            self._stepped |= {id(p): weakref.ref(p) for p in window.parameters}
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was loaded in part and evaluated, last of all."""
        for load in self._loads:
            if load.evaluated:
                names = ", ".join(f"`{name}`" for name in load.left_out[:2])
                many = f" and {len(load.left_out) - 2} more" if len(load.left_out) > 2 else ""
                label = f"{load.name}, a state of step {load.state.step} without {names}{many}"
                count, rank = len(load.left_out), load.is_same
                yield make_probe(
                    "partial", count, rank, step=load.step, label=label, source=load.source
                )

    @shielded
    def _see_taken(self, _state: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        """Remember what an outermost `state_dict` is of: inside, a destination is given."""
        if not args and not kwargs and self.recorder.patches.active:
            self._take(module)

    @shielded
    def _take(self, module: nn.Module) -> None:
        """Remember the state of a module."""
        self._remember(module)

    def _remember(self, module: nn.Module) -> None:
        """Remember a number of each parameter of a module that has been trained."""
        own = _parameters(module)
        if not self.recorder.steps or self._left <= 0 or not own:
            return
        trained = self._held(own)
        if trained:
            self._left -= 1
            numbers = _numbers_of(own)
            past = _PastState(
                weakref.ref(module), type(module), self.recorder.steps, numbers, trained
            )
            self._past = [*self._past, past][-_KEPT:]

    def _held(self, own: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the names of parameters that an optimizer which steps has trained."""
        refs = {name: self._stepped.get(id(parameter)) for name, parameter in own.items()}
        return {name for name, ref in refs.items() if ref is not None and ref() is own[name]}

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `Module.load_state_dict` that tells what it has left out."""

        @wraps(load)
        def wrapper(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            """Load the state between two looks at the parameters, where names may be missing."""
            strict = args[1] if len(args) > 1 else kwargs.get("strict", True)
            if strict or not self.recorder.patches.active:
                return load(module, *args, **kwargs)
            before = self._before(module)
            result = load(module, *args, **kwargs)
            self._see_loaded(module, before or {}, set(getattr(result, "missing_keys", ())))
            return result

        return wrapper

    @shielded
    def _before(self, module: nn.Module) -> dict[str, float]:
        """Return the numbers that a module has before a load."""
        return _numbers_of(_parameters(module))

    @shielded
    def _see_loaded(self, module: nn.Module, before: dict[str, float], missing: set[str]) -> None:
        """See whether what was loaded is a part of what was trained together."""
        self._loads = [load for load in self._loads if load.module() is not module]
        own = _parameters(module)
        self.looked |= {"partial"} if own else set()
        now = _numbers_of(own)
        given = now.keys() - missing
        for past in reversed(self._past):
            whole = now.keys() == past.numbers.keys() and type(module) is past.kind
            if not whole or not past.trained & given or len(self._loads) >= _MOST:
                continue
            if any(now[name] != past.numbers[name] for name in given):
                continue
            own_state = past.module() is module
            moved = [n for n in past.trained & given if now[n] != before.get(n)]
            left = [n for n in now if n in missing & past.trained and now[n] != past.numbers[n]]
            if not left or not moved or (not own_state and self._held(own) & set(left)):
                return
            name, source = self.recorder.names.module(module), caller()
            args = weakref.ref(module), past, left, own_state, self.recorder.steps, name, source
            self._loads.append(_PartialLoad(*args))
            return


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module that is small enough, and can be read without waiting."""
    own = dict(nn.Module.named_parameters(module))
    plain = all(p.is_cpu and has_memory(p) and p.numel() for p in own.values())
    return own if plain and len(own) <= _NAMES else {}


def _numbers_of(own: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return a number of each parameter, by which its state is known."""
    numbers: dict[str, float] = {}
    with torch.no_grad(), suppress(Exception):  # tensors of foreign kinds refuse what they like
        for name, parameter in own.items():
            local = local_values(parameter)
            numbers[name] = float("nan" if local is None else local.reshape(-1)[-1])
    return numbers
