"""Watches for layers that the user's modules make, and that no line of theirs ever uses."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any, Final

from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.class_code import code_of_class
from trainguard.observe.tools.user_line import foreign

_MAKE: Final = {"__init__", "reset_parameters", "init_weights", "_init_weights", "__post_init__"}
# Whoever calls these may use any layer, whatever its name.
_ANY: Final = {
    *("getattr", "_modules", "children", "named_children", "modules", "named_modules"),
    *("get_submodule", "__dict__", "vars"),
}
_PLAIN: Final = ("torch.nn.modules.module", "builtins", "abc", "typing", "lightning", "pytorch_l")
_MOST: Final = 8
_LOOKS: Final = (2, 16, 128, 1024)  # steps of an optimizer


class ForgottenLayers(Watcher):
    """
    The Probe events "forgotten": a layer with parameters that its module makes, and never calls.

    Beside it others of the module were called, and no method but those that make the module has
    its name. label: the layer, and a newline before the module's class; measured: its parameters.
    """

    makes = ("Probe:forgotten",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._used: dict[tuple[type, str], bool] = {}  # of those that were not called at a look
        self._found: dict[str, Probe] = {}

    def after_step(self, window: Window) -> Columns:
        """Look through all modules that were called, now and then: at the end they may be gone."""
        if window.index in _LOOKS:
            with suppress(Exception):  # whatever somebody's classes do when they are looked at
                self._look()
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was forgotten at the last look, once for each class and name."""
        yield from self._found.values()

    def _look(self) -> None:
        """Take down what was not called by now, and what was."""
        self._found.clear()
        told: set[tuple[type, str]] = set()
        for root in self.recorder.names.roots():
            for module in root.modules():
                kind = type(module)
                for name, layer in self._idle(module):
                    self.looked.add("forgotten")
                    if (kind, name) not in self._used:
                        self._used[kind, name] = _is_used(kind, name)
                    if (kind, name) in told or len(told) >= _MOST or self._used[kind, name]:
                        continue
                    told.add((kind, name))
                    count = sum(p.numel() for p in nn.Module.parameters(layer))
                    label = f"{self.recorder.names.module(module)}.{name}\n{kind.__name__}"
                    made = make_probe("forgotten", count, 0, label=label, source=_place_of(kind))
                    self._found[label] = made

    def _idle(self, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield the layers of a module that were not called, where others of it were."""
        called = self.recorder.called
        if id(module) not in called or not _is_plain(type(module)):
            return
        layers = {
            name: layer
            for name, layer in module._modules.items()  # noqa: SLF001 methods are overridden
            if layer is not None and any(p.requires_grad for p in nn.Module.parameters(layer))
        }
        ran = {n: any(id(part) in called for part in own.modules()) for n, own in layers.items()}
        if any(ran.values()):
            yield from ((name, layer) for name, layer in layers.items() if not ran[name])


def _is_plain(kind: type) -> bool:
    """Say whether a class is the user's own, above nothing that may use layers by their names."""
    codes = [code for _, code in code_of_class(kind)]
    if not any(foreign(code.co_filename) for code in codes):
        return False
    return all(
        base.__module__.startswith(_PLAIN)
        or any(foreign(code.co_filename) for _, code in code_of_class(base))
        for base in kind.__mro__
    )


def _is_used(kind: type, name: str) -> bool:
    """Say whether a method of the user's has the name of a layer, or may use any."""
    for base in kind.__mro__:
        for method, code in code_of_class(base):
            if method in _MAKE or not foreign(code.co_filename):
                continue
            words = set(_words_in(code))
            if name in words or words & _ANY:
                return True
    return False


def _words_in(code: CodeType) -> Iterator[str]:
    """Yield the names and the texts in a piece of code, and in what is defined inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words_in(constant)
        elif isinstance(constant, str):
            yield constant


def _place_of(kind: type) -> str:
    """Return where a class makes its layers."""
    made: Any = getattr(vars(kind).get("__init__"), "__code__", None)
    return f"{made.co_filename}:{made.co_firstlineno}" if made is not None else ""
