"""The code of a class: what it defines itself, by name."""

from collections.abc import Iterator
from functools import cached_property
from types import CodeType
from typing import Any


def code_of_class(kind: type) -> Iterator[tuple[str, CodeType]]:
    """Yield the names of a class's own methods and properties, each with its code."""
    for name, value in vars(kind).items():
        for function in _functions_of(value):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield name, code


def _functions_of(value: Any) -> tuple[Any, ...]:
    """Return the functions that an attribute of a class is made of, decorators taken off."""
    if isinstance(value, property):
        found: tuple[Any, ...] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, staticmethod | classmethod):
        found = (value.__func__,)
    elif isinstance(value, cached_property):
        found = (value.func,)
    else:
        found = (value,)
    return (*found, *(getattr(function, "__wrapped__", None) for function in found))
