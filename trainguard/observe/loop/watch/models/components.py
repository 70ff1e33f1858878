"""
Sees how the user's own losses, models, schedules and loaders are made, for `trainguard init`.

It asks Python to be told of each call, and looks at those of functions and modules that are the
user's. That takes time, so that no other recording does it.
"""

import sys
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainguard.events.base import Event
from trainguard.events.component import Component
from trainguard.observe.loop.watch.models.seen_inputs import SeenInputs
from trainguard.observe.loop.watch.samples.seen_loaders import INIT, Made, SeenLoaders
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.plain_code import (
    Imports,
    default_of,
    find_no_import,
    import_name,
    write_arguments,
    write_plain,
)
from trainguard.observe.tools.user_line import foreign
from trainguard.subjects.loader import METHODS

_PATIENCE = 16  # calls after which a function that has returned nothing of interest never will
_MANY = CO_VARARGS | CO_VARKEYWORDS
_LATER = CO_GENERATOR | CO_COROUTINE
_BOUND = ("self", "cls")


@dataclass(slots=True)
class _Seen:
    """One function or module over its calls; `minimised` counts where a backward came from."""

    kind: str
    module: str
    name: str
    source: str
    inputs: SeenInputs = field(default_factory=SeenInputs)
    made: Made | None = None
    minimised: int = 0
    maximised: int = 0
    returned: set[float] = field(default_factory=set)
    rate: float = 0.0


@dataclass(slots=True)
class _OpenCall:
    """A call that has not returned yet."""

    frame: FrameType
    role: str
    given: dict[str, Any]
    owner: Any = None
    outermost: bool = False


class Components(Watcher):
    """The Component events."""

    makes = ("Component",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._roles: dict[CodeType, str] = {}
        self._fruitless: dict[CodeType, int] = {}
        self._calls: list[_OpenCall] = []
        self._made: weakref.WeakKeyDictionary[Any, Made] = weakref.WeakKeyDictionary()
        self._loaders = SeenLoaders()
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self._rates: set[float] = set()

    def install(self, patches: Patches) -> None:
        """Ask to be told of calls, where nobody else has asked."""
        if sys.getprofile() is None:
            sys.setprofile(self._notice)
            patches.on_undo(lambda: sys.setprofile(None))

    def after_step(self, window: Window) -> Columns:
        """Remember the rates of a step."""
        optimizer = window.optimizer() if window.optimizer is not None else None
        if optimizer is not None:
            self._rates |= {float(group.get("lr", 0.0)) for group in optimizer.param_groups}
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what can be declared, and what cannot, with the reason."""
        self._calls.clear()
        for seen in self._seen.values():
            if seen.kind == "loss" and (not seen.minimised or seen.maximised):
                continue
            if seen.kind == "rate" and not (self._rates and self._rates <= seen.returned):
                continue
            told = _tell(seen)
            if not told.obstacle or foreign(told.source.rpartition(":")[0]):
                yield told
        yield from self._loaders.tell()

    def _notice(self, frame: FrameType, event: str, result: Any) -> None:
        """Be told of a call, or of a return, by Python; most are none of ours."""
        if event == "call":
            role = self._roles.get(frame.f_code)
            if role is None:
                role = self._roles[frame.f_code] = _role(frame.f_code)
            if role:
                self._enter(frame, role)
        elif event == "return" and self._calls and self._calls[-1].frame is frame:
            self._leave(self._calls.pop(), result)

    @shielded
    def _enter(self, frame: FrameType, role: str) -> None:
        """Look at the arguments of a call before anything is done with them."""
        variables, code = frame.f_locals, frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        given = {name: variables[name] for name in code.co_varnames[:count] if name in variables}
        owner = given.pop("self", None) if role != "function" else None
        if role in ("forward", "init") and not isinstance(owner, nn.Module) and not _serves(owner):
            return
        call = _OpenCall(frame, role, given, owner)
        call.outermost = not any(other.role == "forward" for other in self._calls)
        self._calls.append(call)
        if role == "function" and _may_be_loss(given):
            self._look(self._of("loss", *_place(frame), _line(code)), given)
        elif role == "forward":
            self._enter_forward(call)

    def _enter_forward(self, call: _OpenCall) -> None:
        """Look at the inputs of the model, and of a loss that is a module."""
        module, code = call.owner, call.frame.f_code
        if not torch.is_grad_enabled():
            return
        bare = self.recorder.is_bare(module)
        if not (call.outermost and module.training and not bare) and not (
            bare and foreign(code.co_filename) and _may_be_loss(call.given)
        ):
            return
        kind: type[nn.Module] = type(module)
        role = "loss" if bare else "model"
        seen = self._of(role, kind.__module__, kind.__qualname__, _line(code))
        plain = kind.__init__ is nn.Module.__init__ and foreign(code.co_filename)
        as_class = Made(kind.__module__, kind.__qualname__, {}) if plain else None
        seen.made = self._made.get(module, as_class)
        if code.co_flags & _MANY:
            seen.inputs.obstacle = "its forward takes any arguments"
        given = {k: v for k, v in call.given.items() if v is not default_of(module.forward, k)}
        self._look(seen, given)

    def _look(self, seen: _Seen, given: dict[str, Any]) -> None:
        """Take the inputs of one call, until enough was seen."""
        if not seen.inputs.is_full:
            with torch.no_grad():
                seen.inputs.add(given)

    @shielded
    def _leave(self, call: _OpenCall, result: Any) -> None:
        """Look at what a call has returned."""
        called, code = type(call.owner), call.frame.f_code
        if call.role == "init":
            if getattr(called.__init__, "__code__", None) is code:
                made = Made(called.__module__, called.__qualname__, call.given, _line(code))
                self._made[call.owner] = made
        elif call.role == "loader":
            if call.frame.f_back is not None and foreign(call.frame.f_back.f_code.co_filename):
                self._loaders.add_loader(call.owner, call.frame.f_back)
        elif call.role == "serve":
            made = Made(called.__module__, called.__qualname__, {}, _line(code))
            self._loaders.add_method(self._made.get(call.owner, made), code.co_name, result)
        elif call.role == "forward":
            self._await(("loss", called.__module__, called.__qualname__), result)
        else:
            self._leave_function(call, result)

    def _leave_function(self, call: _OpenCall, result: Any) -> None:
        """Look at what a function of the user's has returned: a loss, a rate, what it has built."""
        place, code = _place(call.frame), call.frame.f_code
        made = Made(*place, call.given, _line(code))
        if self._loaders.add_result(made, result, call.frame.f_locals):
            return
        parts = result if isinstance(result, tuple | list) else (result,)
        schedulers = [part for part in parts[:8] if isinstance(part, LRScheduler)]
        if isinstance(result, nn.Module):
            known = self._made.get(result)
            if known is None or write_arguments(known.given, []) is None:
                self._made[result] = made
        elif schedulers:
            seen = self._of("schedule", *place, _line(code))
            seen.made = Made(*place, call.given)
            group = schedulers[0].optimizer.param_groups[0]
            seen.rate = float(group.get("initial_lr", group["lr"]))
        elif type(result) is float and call.given and type(next(iter(call.given.values()))) is int:
            seen = self._of("rate", *place, _line(code))
            seen.made = Made(*place, dict(list(call.given.items())[1:]))
            seen.returned.add(result)
        elif not self._await(("loss", *place), result):
            self._lose_patience(code)

    def _lose_patience(self, code: CodeType) -> None:
        """Look no longer at a function that returns nothing of interest."""
        self._fruitless[code] = self._fruitless.get(code, 0) + 1
        if self._fruitless[code] > _PATIENCE:
            self._roles[code] = ""

    def _await(self, key: tuple[str, str, str], result: Any) -> bool:
        """Ask a loss to tell whether a backward comes from it; say whether it is one."""
        seen = self._seen.get(key)
        able = isinstance(result, torch.Tensor) and result.requires_grad and result.numel() == 1
        if seen is None or not able or not result.is_floating_point():
            return False

        def on_gradient(gradient: torch.Tensor) -> None:
            """Count whether the training makes it smaller or larger."""
            seen.minimised += bool(gradient.sum() > 0)
            seen.maximised += bool(gradient.sum() < 0)

        if seen.minimised + seen.maximised < _PATIENCE:
            result.register_hook(on_gradient)
        return True

    def _of(self, kind: str, module: str, name: str, source: str) -> _Seen:
        """Return what is seen of a component, begun where it is met first."""
        return self._seen.setdefault((kind, module, name), _Seen(kind, module, name, source))


def _tell(seen: _Seen) -> Component:
    """Return the event of a component."""
    kind = {"rate": "schedule"}.get(seen.kind, seen.kind)
    imports: Imports = []
    made = seen.made or Made(seen.module, seen.name, {})
    given, drawn = dict(made.given), list[tuple[str, str, str, float, float, bool, str]]()
    if kind == "schedule":
        given = {k: v for k, v in given.items() if not isinstance(v, Optimizer)}
    arguments = write_arguments(given, imports)
    obstacle = seen.inputs.find_obstacle() if kind != "schedule" else ""
    if arguments is None:
        obstacle = "what it is made with has no short code"
    elif seen.kind == "model" and seen.made is None:
        obstacle = "no class or function of yours makes it"
    obstacle = obstacle or find_no_import(made.module, made.name)
    if not obstacle and kind != "schedule":
        drawn = [each for each in seen.inputs.describe() if not _is_default(made, each)]
    return Component(
        kind=kind,
        name=made.name,
        module=import_name(made.module),
        source=made.source or seen.source,
        arguments=arguments or (),
        built=seen.made is not None,
        imports=tuple((import_name(module), name) for module, name in dict.fromkeys(imports)),
        inputs=tuple(drawn),
        sizes=seen.inputs.sizes() if drawn else (),
        rate=seen.rate,
        obstacle=obstacle,
    )


def _role(code: CodeType) -> str:
    """Say what the calls of some code may be: of a module, of what makes one, or of a function."""
    if code is INIT:
        return "loader"
    if code.co_name == "forward" and code.co_varnames[:1] == ("self",):
        return "forward"
    if not foreign(code.co_filename) or not code.co_flags & CO_OPTIMIZED:
        return ""
    if code.co_name == "__init__":
        return "init"
    if code.co_name in METHODS.values():
        return "serve"
    plain = not code.co_flags & (_MANY | _LATER) and code.co_qualname.isidentifier()
    return "function" if plain else ""


def _serves(owner: Any) -> bool:
    """Say whether something is a data module, or anything shaped like one."""
    return any(callable(getattr(type(owner), method, None)) for method in METHODS.values())


def _may_be_loss(given: dict[str, Any]) -> bool:
    """Say whether a call takes tensors that lead back to parameters, and no module."""
    with suppress(Exception):
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        trained = any(t.requires_grad and t.is_floating_point() for t in tensors)
        return trained and not any(isinstance(value, nn.Module) for value in given.values())
    return False


def _place(frame: FrameType) -> tuple[str, str]:
    """Return the module and the name of a function that runs."""
    return str(frame.f_globals.get("__name__", "")), frame.f_code.co_name


def _line(code: CodeType) -> str:
    """Return where some code stands."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _is_default(made: Made, described: tuple[Any, ...]) -> bool:
    """Say whether an input of a function is what it is where nothing is given."""
    function: Any = getattr(sys.modules.get(made.module), made.name, None)
    if described[1] != "value" or not hasattr(function, "__code__"):
        return False
    default = default_of(function, described[0])
    return default is not function and write_plain(default, []) == described[6]
