"""Watches for lines of a training that compute something, and keep nothing of it."""

from collections.abc import Iterable
from inspect import getattr_static, unwrap
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.discarded import find_discarded, find_unread
from trainguard.observe.tools.state_roles import find_states
from trainguard.observe.tools.user_line import foreign, forward_of, user_frames, variables_of

_PASSES = 64  # that learn, whose modules are looked at
_STEPS = {1, 2, 8, 32}  # around which the functions that run are looked at
_FRAMES = 4
_MOST = 8  # lines that are told


class DiscardedResults(Watcher):
    """
    The Probe events "discarded": `x.clamp(0, 1)` as a statement, which leaves x as it is.

    label: the statement; measured: 1; reference: 1 where nothing but a mistake may be meant.

    And the Probe events "unread layer": a layer or a parameter, the first line of the label, of
    which a statement, the other line, makes something that nothing reads. And the Probe events
    "swapped states": statements that give an LSTM what it returned as its states the other way
    round.
    """

    makes = ("Probe:discarded", "Probe:unread layer", "Probe:swapped states")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._passes = 0
        self._seen: set[type[nn.Module]] = set()
        self._methods: set[CodeType] = set()  # that were read
        self._found: dict[str, tuple[str, bool]] = {}  # a statement and if it is certain, by line
        self._unread: dict[str, tuple[str, str]] = {}  # a statement and its line, by the layer
        self._swapped: dict[str, str] = {}  # a statement, by its line

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Read the code of the modules of a pass that learns."""
        if not forward.gradients or self._passes >= _PASSES:
            return
        self._passes += 1
        for part in nn.Module.modules(module):
            code = getattr(forward_of(part), "__code__", None)
            if type(part) in self._seen or code is None:
                continue
            self._seen.add(type(part))
            if foreign(code.co_filename):
                known = getattr(forward_of(part), "__globals__", {})
                self._take(code, _visible(code, known), part)
                self._take_maker(part)
                self._take_methods(part, code.co_names)

    def before_step(self, window: Window) -> Columns:
        """Read the code of the functions that make a step, and of those that they call."""
        if self.recorder.steps in _STEPS:
            for frame in user_frames(_FRAMES):
                variables = variables_of(frame)
                known = _visible(frame.f_code, frame.f_globals)
                self._take(frame.f_code, {**known, **variables})
                for part in [each for each in variables.values() if isinstance(each, nn.Module)]:
                    self._take_methods(part, frame.f_code.co_names)
                for name in frame.f_code.co_names:
                    called = _unwrap(frame.f_globals.get(name))
                    if isinstance(called, FunctionType) and foreign(called.__code__.co_filename):
                        self._take(called.__code__, _visible(called.__code__, called.__globals__))
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, (statement, certain) in list(self._found.items())[:_MOST]:
            yield make_probe("discarded", 1, certain, label=statement, source=source)
        told = {source for source, (_, certain) in self._found.items() if certain}
        unread = [each for each in self._unread.items() if each[1][1] not in told]
        for name, (statement, source) in unread[:_MOST]:
            yield make_probe("unread layer", 1, 0, label=f"{name}\n{statement}", source=source)
        for source, statement in list(self._swapped.items())[:_MOST]:
            yield make_probe("swapped states", 1, label=statement, source=source)

    def _take_maker(self, part: nn.Module) -> None:
        """Read the code that made a module: `self.layer == weight_norm(self.layer)`."""
        code = getattr(type(part).__init__, "__code__", None)
        if code is not None and foreign(code.co_filename) and code.co_argcount:
            known = getattr(type(part).__init__, "__globals__", {})
            self._take(code, {**_visible(code, known), code.co_varnames[0]: part})

    def _take_methods(self, part: nn.Module, names: Iterable[str]) -> None:
        """Read the code of the methods of a module that other code names, and that these name."""
        waiting = list(names)
        while waiting:
            method = _unwrap(getattr_static(type(part), waiting.pop(), None))
            code = method.__code__ if isinstance(method, FunctionType) else None
            if code is None or code in self._methods or not foreign(code.co_filename):
                continue
            self._methods.add(code)
            if code.co_argcount and code.co_name != "forward":
                known = _visible(code, method.__globals__)
                self._take(code, {**known, code.co_varnames[0]: part})
                waiting += code.co_names

    def _take(self, code: Any, names: dict[str, Any], module: nn.Module | None = None) -> None:
        """Take down what a function computes for nothing."""
        self.looked.add("discarded")
        for statement, line, certain in find_discarded(code, names, module):
            self._found.setdefault(f"{code.co_filename}:{line}", (statement, certain))
        for statement, line, held in find_unread(code, names, module):
            known = self.recorder.names
            name = known.module(held) if isinstance(held, nn.Module) else known.parameter(held)
            self._unread.setdefault(name, (statement, f"{code.co_filename}:{line}"))
        for statement, line, is_swapped in find_states(code, names, module):
            self.looked.add("swapped states")
            if is_swapped:
                self._swapped.setdefault(f"{code.co_filename}:{line}", statement)


def _visible(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a module that a function reads: its own variables hide others."""
    own = {*code.co_varnames, *code.co_cellvars}
    return {name: value for name, value in names.items() if name not in own} if own else names


def _unwrap(called: Any) -> Any:
    """Return a function under its decorators, such as `torch.no_grad()`; others as they are."""
    return unwrap(called) if isinstance(called, FunctionType) else called
