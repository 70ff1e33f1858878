"""Remembers which line of the user's code has made a module, an optimizer or a loader."""

import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, WeightedRandomSampler

from trainguard.events.base import Event
from trainguard.events.origin import Origin
from trainguard.observe.loop.watch.parameters.drawn_lines import DrawnLines
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Columns, Watcher, now_and_then, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.sample_lines import find_scalings
from trainguard.observe.tools.user_line import place_of, user_frames

_MOST, _MOST_TOLD = 16384, 512
_LOADERS = 8  # lines that make some
_FRAMES = 16  # classes that are derived from each other


class MadeLines(Watcher):
    """
    The Origin events of modules below those that were called, and of optimizers that step.

    Of weights that were drawn or set by the user's own lines, too. And of the loader that had
    served the latest batch when a step was first made with one: "loader"; "scaled" are the lines
    that multiply, divide or convert what it serves.
    """

    makes = ("Origin",)
    relies_on = ("Batches", "DrawnLines")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lines: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._found: dict[str, str] = {}
        # Of what loaders serve, by the lines that made them.
        self._scalings: dict[str, list[str]] = {}
        self._is_full = False

    def install(self, patches: Patches) -> None:
        """Listen to modules and optimizers that are made."""
        patches.replace(nn.Module, "__init__", self._tell_made)
        patches.replace(Optimizer, "__init__", self._tell_made)
        patches.replace(DataLoader, "__init__", self._tell_made)
        patches.replace(WeightedRandomSampler, "__init__", self._tell_made)

    def find_line(self, made: object) -> str:
        """Return the line that made something, or a loader with this sampler; or nothing."""
        known = self._lines.get(id(made))
        return known[1] if known is not None and known[0]() is made else ""

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Take down the lines of what has a name by now, while it is alive."""
        optimizer = None if window.optimizer is None else window.optimizer()
        if window.name and optimizer is not None:
            self.add(window.name, optimizer)
        served_by = self.recorder.watcher(Batches).served_by()
        if served_by is not None:
            self.add("loader", getattr(served_by, "_index_sampler", None))
        names = self.recorder.names
        for root in names.roots():
            if names.module(root) not in self._found:
                self._add_parts(root)
        return {}

    def _add_parts(self, root: nn.Module) -> None:
        """Take down the lines of the modules of a model, and of weights that were set."""
        names, drawn = self.recorder.names, self.recorder.watcher(DrawnLines)
        for module in root.modules():
            if len(self._found) >= _MOST_TOLD:
                return
            self.add(names.module(module), module)
            for weight in module.__dict__.get("_parameters", {}).values():  # no property is asked
                if weight is not None and (line := drawn.find_line([weight])):
                    self._found.setdefault(names.parameter(weight), line)

    def add(self, name: str, made: object) -> None:
        """Take down the line of something that has a name of its own."""
        if len(self._found) < _MOST_TOLD:
            self._found.setdefault(name, self.find_line(made))

    def finish(self) -> Iterable[Event]:
        """Return the lines of all that has a name."""
        scaled = self._scalings.get(self._found.get("loader", ""), [])
        found = [*self._found.items(), *(("scaled", line) for line in scaled)]
        return [Origin(name=name, source=line) for name, line in found if line]

    def _tell_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return an `__init__` that tells of what it has made, where it is not being compiled."""
        compiling = torch.compiler.is_compiling

        @wraps(original)
        def wrapper(made: Any, /, *args: Any, **kwargs: Any) -> None:
            """Make it, and tell of it."""
            original(made, *args, **kwargs)
            if not compiling():
                self._see_made(made)

        return wrapper

    @shielded
    def _see_made(self, made: Any) -> None:
        """Take down the line that makes something."""
        if self._is_full:
            return
        if len(self._lines) >= _MOST:
            self._lines = {key: kept for key, kept in self._lines.items() if kept[0]() is not None}
            self._is_full = 2 * len(self._lines) > _MOST  # or all is looked through once more soon
        line = _line_of(type(made))
        serving = isinstance(made, DataLoader)
        if serving and line not in self._scalings and len(self._scalings) < _LOADERS:
            frame = next((each for each in user_frames(_FRAMES) if place_of(each) == line), None)
            self._scalings[line] = [] if frame is None else find_scalings(frame)
        for each in (made, made.sampler, made.batch_sampler) if serving else (made,):
            known = each is not made and self.find_line(each)  # the line that made a sampler itself
            if type(each).__weakrefoffset__ and not known:  # not a list of indices
                self._lines[id(each)] = weakref.ref(each), line


def _line_of(kind: type) -> str:
    """Return the line that is making a thing of some class, outside of that class's `__init__`."""
    own = {getattr(vars(base).get("__init__"), "__code__", None) for base in kind.__mro__}
    for frame in user_frames(_FRAMES):
        if frame.f_code not in own:
            return place_of(frame)
        own.discard(frame.f_code)  # a part of the same class is made by this very function
    return ""
