"""Reads in which variable the result of a running call goes, and whether anything reads that."""

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from trainguard.observe.tools.user_line import PACKAGE, asks_for_variables, foreign

_TORCH = str(Path(torch.__file__).parent)
# What hands on the result of what it calls: loss functions, modules, operators.
_FILES = ("nn/", "overrides.py", "functional.py", "_tensor.py")
_HANDS_ON = (PACKAGE, *(f"{_TORCH}/{name}" for name in _FILES))
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL")
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_RETURNS = 4  # functions of the user's through which a number is handed on


def find_store() -> tuple[FrameType | None, str]:
    """Return the user's frame into whose variable goes what is computed now, and its name."""
    frame = _handed_to(sys._getframe(2))  # noqa: SLF001 the one way to look at callers
    for _ in range(_RETURNS):
        if frame is None:
            break
        name, is_returned = _whereto(frame.f_code, frame.f_lasti)
        if name:
            return frame, name
        frame = _handed_to(frame.f_back) if is_returned else None
    return None, ""


def _handed_to(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame to which a result is handed on as it is; None where it may not be."""
    while frame is not None and not foreign(file := frame.f_code.co_filename):
        if not file.startswith(_HANDS_ON):
            return None
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def _whereto(code: CodeType, at: int) -> tuple[str, bool]:
    """Return the variable into which the result of an instruction goes, or if it is returned."""
    following = next((one for one in dis.get_instructions(code) if one.offset > at), None)
    if following is None:
        return "", False
    if following.opname.startswith(_STORES):
        kept = following.argval
        return kept[0] if isinstance(kept, tuple) else kept, False
    return "", following.opname == "RETURN_VALUE"


@lru_cache(maxsize=1024)
def is_read(code: CodeType, name: str, at: int) -> bool:
    """
    Say whether what an instruction puts into a variable may be read.

    By the function, or one in it, or a cell after it; not where another value certainly takes its
    place before.
    """
    if code.co_name.startswith("<") and not Path(code.co_filename).is_file():
        return True
    if name.startswith("_") or asks_for_variables(code):
        return True
    return reads_ever(code, name) and not _is_overwritten(code, name, at)


def stores_unread(code: CodeType, name: str, lines: range) -> bool:
    """Say whether some lines of a function store in a variable of its own that nothing reads."""
    if code.co_name == "<module>" or name in code.co_cellvars + code.co_freevars:
        return False
    stored = [
        one.offset - 1
        for one in dis.get_instructions(code)
        if one.opname.startswith("STORE_FAST") and one.argval == name
        if one.positions is not None and one.positions.lineno in lines
    ]
    return bool(stored) and not any(is_read(code, name, at) for at in stored)


def _is_overwritten(code: CodeType, name: str, at: int) -> bool:
    """Say whether a variable is stored in again before it is read, whatever happens between."""
    later = iter(one for one in dis.get_instructions(code) if one.offset > at)
    if name in code.co_cellvars + code.co_freevars or not _is_store(next(later, None), name):
        return False
    for one in later:
        if one.is_jump_target or one.opcode in _JUMPS or one.opname in _ENDS:
            return False
        if one.opname.startswith(_STORES) and one.argval == name:
            return True
        if name in (one.argval if isinstance(one.argval, tuple) else (one.argval,)):
            return False
    return False


def _is_store(one: dis.Instruction | None, name: str) -> bool:
    """Say whether an instruction stores in a variable, and does nothing else."""
    return one is not None and one.opname.startswith(_STORES) and one.argval == name


def reads_ever(code: CodeType, name: str) -> bool:
    """Say whether a variable is read in some code, or in the functions that are made in it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return name in list(_loaded_in(code)) or any(reads_ever(each, name) for each in inner)


def _loaded_in(code: CodeType) -> Iterator[Any]:
    """Yield the names that instructions read, also those that do two things at once."""
    for one in dis.get_instructions(code):
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if one.opname.startswith("LOAD_"):
            yield from names
        elif "LOAD" in one.opname:  # STORE_FAST_LOAD_FAST
            yield from names[1:]
