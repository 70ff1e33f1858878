"""Watches for operations on bytes, whose results begin anew where they leave 0 to 255."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import getattr_static
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import DataLoader, Dataset

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.user_line import foreign, user_frames, variables_of
from trainguard.observe.tools.wrapping_bytes import Operation, find_operations

_LOOKS = {1, 4}  # steps around which the functions that run are looked at
_FRAMES, _DEEP = 4, 8
_MOST = 8  # lines that are told
_Function = tuple[CodeType, Mapping[str, Any]]


class WrappedNumbers(Watcher):
    """
    The Probe events "wrapped": `frames[i + 1] - frames[i]` of bytes; label: the operation.

    measured: how many of its results do not fit into a byte, reference: of how many.
    In the functions around a step, in those that they name, and in data sets that they hold.
    """

    makes = ("Probe:wrapped",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._found: dict[str, Operation] = {}  # by their lines
        self._seen: set[CodeType] = set()

    def before_backward(self, loss: Any) -> None:
        """Read the code that serves what is learned from."""
        if self.recorder.age not in _LOOKS:
            if self.recorder.age > max(_LOOKS):
                self.recorder.dismiss(self)
            return
        for code, names in chain.from_iterable(map(_functions_at, user_frames(_FRAMES))):
            if code not in self._seen and foreign(code.co_filename):
                self._seen.add(code)
                for operation in find_operations(code, names):
                    self.looked.add("wrapped")
                    if operation.wrapped:
                        self._found.setdefault(f"{code.co_filename}:{operation.line}", operation)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, operation in list(self._found.items())[:_MOST]:
            counted = operation.wrapped, operation.looked
            yield make_probe("wrapped", *counted, label=operation.text, source=source)


def _functions_at(frame: Any) -> Iterator[_Function]:
    """Yield a running function, those that it names, and those of data sets in its variables."""
    variables = {**frame.f_globals, **variables_of(frame)}
    yield frame.f_code, variables
    for name in frame.f_code.co_names:
        called = frame.f_globals.get(name)
        if isinstance(called, FunctionType):
            yield called.__code__, called.__globals__
    for value in list(variables.values()):
        if issubclass(type(value), DataLoader | Dataset):
            yield from _functions_of(value)


def _functions_of(data: Any) -> Iterator[_Function]:
    """Yield what serves the samples of a loader, or of a data set, and the methods it names."""
    for _ in range(_DEEP):
        data = getattr(data, "__dict__", {}).get("dataset", data)
    serves = getattr_static(type(data), "__getitem__", None)
    names = serves.__code__.co_names if isinstance(serves, FunctionType) else ()
    for method in (serves, *(getattr_static(type(data), name, None) for name in names)):
        if isinstance(method, FunctionType) and method.__code__.co_argcount:
            code = method.__code__
            yield code, {**method.__globals__, code.co_varnames[0]: data}
