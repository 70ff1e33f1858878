"""
Functions that call another one for a while, and stay the objects that they are.

A reference that somebody took before is still the function, pickles as it, and is told of as well.
"""

import inspect
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from trainguard.core.errors import passed_by, passes_on

_STATE = ("__code__", "__defaults__", "__kwdefaults__")
_COPIED = (*_STATE[1:], "__module__", "__qualname__", "__doc__", "__annotations__")
_LIVE: "list[Redirection]" = []  # of all recordings, so that they may end in any order
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that None is not callable
    _CALL = compile("def call(*args, **kw):\n    return None(*args, **kw)", "<call>", "exec")
_TEMPLATE = next(constant for constant in _CALL.co_consts if isinstance(constant, CodeType))


def can_be_redirected(function: Any) -> bool:
    """Say whether a function is one of Python's that holds nothing of others."""
    return type(function) is FunctionType and not function.__closure__


class Redirection:
    """What a function was before it was made to call something else."""

    def __init__(self, function: FunctionType, make: Callable[[Any], Any]) -> None:
        """Let a function call what `make` returns, given a copy of the function as it was."""
        self._function = function
        self._was = {name: getattr(function, name) for name in _STATE}
        self._entries = dict(vars(function))
        target = passes_on(make(_copy(function)))
        self._code = _calling(target, function.__code__)
        function.__defaults__ = function.__kwdefaults__ = None  # the copy has them
        function.__code__ = self._code
        added = {k: v for k, v in vars(target).items() if k != "__wrapped__"}
        vars(function).update(added, __signature__=inspect.signature(target))
        _LIVE.append(self)

    def undo(self) -> None:
        """Make the function what it was, or leave that to the redirection that came after."""
        _LIVE.remove(self)
        if self._function.__code__ is self._code:
            for name, value in self._was.items():
                setattr(self._function, name, value)
            vars(self._function).clear()
            vars(self._function).update(self._entries)
            return
        for other in _LIVE:
            if other._was["__code__"] is self._code:  # noqa: SLF001 one of our own
                other._was, other._entries = self._was, self._entries  # noqa: SLF001


def _copy(function: FunctionType) -> FunctionType:
    """Return a function of its own that does the same."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    for name in _COPIED:
        setattr(copy, name, getattr(function, name))
    vars(copy).update(vars(function))
    return copy


def _calling(target: Callable[..., Any], code: CodeType) -> CodeType:
    """Return code that calls something else, and says that it stands where some code stands."""
    constants = tuple(target if constant is None else constant for constant in _TEMPLATE.co_consts)
    calling = _TEMPLATE.replace(
        co_consts=constants,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
    return passed_by(calling)
