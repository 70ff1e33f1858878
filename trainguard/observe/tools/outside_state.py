"""
Whether the user's code of a module could keep something outside of it, read from its bytecode.

A copy of a module takes along what the module holds. What its code reaches elsewhere is there once:
a generator at the top of a file, a counter in a closure, a file that is opened. Code of installed
libraries is trusted.
"""

import builtins
import dis
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from trainguard.observe.tools.user_line import foreign

# What has no state that a forward would move, and what is looked into by itself.
_STILL = (
    *(str, bytes, int, float, complex, bool, type(None), type, ModuleType, nn.Module),
    *(torch.Tensor, torch.dtype, torch.device),
)
_WRITERS = {open, exec, eval, setattr, delattr, globals, input}
_MOST = 2000  # functions that are looked into; of more nothing is known


def reaches_outside(module: nn.Module) -> bool:
    """Say whether to run a copy of a module could move something that is not in the copy."""
    seen: set[FunctionType] = set()
    waiting = [method for part in module.modules() for method in _methods(part)]
    while waiting:
        function = waiting.pop()
        if function in seen or not foreign(function.__code__.co_filename):
            continue
        seen.add(function)
        if len(seen) > _MOST or any(map(_writes, _codes(function.__code__))):
            return True
        for value in _values(function):
            if isinstance(value, FunctionType):
                waiting.append(value)
            elif not _is_still(value):
                return True
    return False


def _methods(part: nn.Module) -> Iterator[FunctionType]:
    """Yield the functions of a module's classes, and of what it holds that is no module."""
    for owner in (part, *vars(part).values()):
        if isinstance(owner, FunctionType):
            yield owner
        for kind in type(owner).__mro__:
            for held in vars(kind).values():
                inner = getattr(held, "__func__", getattr(held, "fget", held))
                if isinstance(inner, FunctionType) and inner.__name__ != "__init__":
                    yield inner


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _writes(code: CodeType) -> bool:
    """Say whether a code rebinds names outside, or attributes of what is no variable of its own."""
    before: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return True
        if each.opname == "STORE_DEREF" and each.argval in code.co_freevars:
            return True
        if each.opname == "STORE_ATTR" and not _is_of_variable(before):
            return True
        before.append(each)
    return False


def _is_of_variable(before: list[dis.Instruction]) -> bool:
    """Say whether the attribute that is set next is one of a local variable, such as `self`."""
    if before and before[-1].opname == "SWAP":  # `self.count += 1`: it was copied from there
        copies = [place for place, each in enumerate(before) if each.opname == "COPY"]
        before = before[: copies[-1]] if copies else []
    return bool(before) and before[-1].opname.startswith("LOAD_FAST")


def _values(function: FunctionType) -> Iterator[Any]:
    """Yield what the names stand for that a function reads outside of itself."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in names:
        value = function.__globals__.get(name, getattr(builtins, name, None))
        if not isinstance(value, ModuleType):
            yield value
        elif foreign(getattr(value, "__file__", None) or "<"):  # `settings.RNG.random()`
            yield from (vars(value)[inner] for inner in names & {*vars(value)})
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _is_still(value: Any) -> bool:
    """Say whether a value stays what it is, whatever is done with it."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_still, value))
    if isinstance(value, BuiltinFunctionType):
        return value not in _WRITERS
    if isinstance(value, _STILL):
        return True
    if isinstance(value, torch.Generator):
        return False
    # Functions of torch in C, what decorators make, types of annotations.
    return type(value).__module__.partition(".")[0] in ("torch", "typing", "types", "functools")
