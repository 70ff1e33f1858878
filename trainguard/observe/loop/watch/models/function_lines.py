"""Finds the line of a model's own code that calls a function, or makes a module that does."""

import inspect
import linecache
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from trainguard.observe.loop.watch.models.made_lines import MadeLines

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

# As autograd calls them, and Python.
ACTIVATIONS = {
    "ReluBackward0": "relu",
    "SigmoidBackward0": "sigmoid",
    "SoftmaxBackward0": "softmax",
    "TanhBackward0": "tanh",
}


def find_function_line(recorder: "Recorder", function: str, within: str = "") -> str:
    """
    Return the one line of a model's own classes that calls a function, or makes its module.

    function: as it is called, "log_softmax". within: the name of a module that has it, whose owners
    alone are asked. Nothing where there is no such line, or several.
    """
    for root in recorder.names.roots():
        lines = list(dict.fromkeys(_find_calls(recorder, root, function, within)))
        if lines:
            return lines[0] if len(lines) == 1 else ""
        made = dict.fromkeys(_find_modules(recorder, root, function))
        if made:
            return next(iter(made)) if len(made) == 1 else ""
    return ""


def find_line_near(place: str, function: str) -> str:
    """Return the one line that calls a function in the file of a place, `file:line`, if any."""
    file = place.rpartition(":")[0]
    found = [
        number for number, line in enumerate(linecache.getlines(file), 1) if _calls(line, function)
    ]
    return f"{file}:{found[0]}" if len(found) == 1 else ""


def find_last_line(recorder: "Recorder", function: str) -> str:
    """Return the line that makes a model's last module, if that is of a function; else its line."""
    for root in recorder.names.roots():
        *_, last = root.modules()
        if _is_of(last, function):
            return recorder.watcher(MadeLines).find_line(last)
    return find_function_line(recorder, function)


def _find_modules(recorder: "Recorder", root: nn.Module, function: str) -> Iterator[str]:
    """Yield the lines that made modules of torch below one, which are a function of that name."""
    made = recorder.watcher(MadeLines)
    for module in root.modules():
        if _is_of(module, function) and (line := made.find_line(module)):
            yield line


def _is_of(module: nn.Module, function: str) -> bool:
    """Say whether a module of torch is a function, as nn.LogSoftmax is log_softmax."""
    kind = type(module)
    return kind.__module__.startswith("torch.") and kind.__name__.lower() == function.replace(
        "_", ""
    )


def _find_calls(recorder: "Recorder", root: nn.Module, function: str, within: str) -> Iterator[str]:
    """Yield the lines of the user's classes below a module that call a function."""
    for module in root.modules():
        name = recorder.names.module(module)
        owns = not within or within == name or within.startswith(f"{name}.")
        if owns and not type(module).__module__.startswith("torch."):
            yield from _lines_with(type(module), function)


def _lines_with(kind: type[nn.Module], function: str) -> Iterator[str]:
    """Yield the lines of a class that call a function, as `file:line`."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return
    for number, line in enumerate(lines, first):
        if _calls(line, function):
            yield f"{file}:{number}"


def _calls(line: str, function: str) -> bool:
    """Say whether a line of code calls a function, or a module of that name."""
    return re.search(rf"(?<!\w){function}_?\(", line, re.IGNORECASE) is not None
