"""Which line of the user's code is running: `train.py:41`."""

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from inspect import CO_OPTIMIZED, getattr_static, unwrap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).parents[2])
_PATHS = sysconfig.get_paths()
_LIBRARIES = {_PATHS["purelib"], _PATHS["platlib"]}
# Those of the machine, of a user, of another environment: `--system-site-packages`, `pip --user`.
_SITES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_CELL = "<ipython-input-"  # how the code of a cell is called, outside of notebooks
_STANDARD = {_PATHS["stdlib"], _PATHS["platstdlib"]}

_NAMESPACES = {"dir", "eval", "exec", "f_locals", "locals", "vars"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}


@cache
def foreign(file: str) -> bool:
    """Say whether a file is the user's own: not ours, not Python's, not an installed library's."""
    if file.startswith(_CELL):
        return True
    installed = any(site in file for site in _SITES)
    return not installed and not file.startswith((PACKAGE, "<", *_folders_of_libraries()))


@cache
def _folders_of_libraries() -> tuple[str, ...]:
    """Return the folders of Python, of what is installed, and of a torch built from its source."""
    torch = find_spec("torch")
    built = set(torch.submodule_search_locations or ()) if torch else set()
    commands = {_PATHS["scripts"] + os.sep}  # where `trainguard` begins, and `torchrun`
    return tuple(_LIBRARIES | _STANDARD | built | commands)


def caller(depth: int = 1) -> str:
    """Return `file:line` of the innermost frame of the user's own code, or nothing."""
    return place_of(sys._getframe(depth))  # noqa: SLF001 the one way to look at callers cheaply


def forward_of(module: object) -> Any:
    """
    Return the function that computes what a module returns, as its class has it.

    Classes of scripted modules have something else there, which raises where it is asked for.
    """
    return getattr_static(type(module), "forward", None)


def find_method_line(owner: object, name: str) -> str:
    """Return the line where the user's class of something defines a method, or nothing."""
    code = getattr(unwrap(getattr_static(type(owner), name, None)), "__code__", None)
    if code is None or not foreign(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"


def place_of(frame: FrameType | None) -> str:
    """Return `file:line` of the user's code that is running in a frame, or nothing."""
    frame = user_frame(frame)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own code, from a frame outwards."""
    while frame is not None and not foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_frames(most: int) -> Iterator[FrameType]:
    """Yield the frames of the user's own code that are running, the innermost first."""
    frame = user_frame(sys._getframe(1))  # noqa: SLF001 the one way to look at callers
    while frame is not None and most > 0:
        yield frame
        frame, most = user_frame(frame.f_back), most - 1


def variables_of(frame: FrameType) -> dict[str, Any]:
    """
    Return the variables of a running function or module by their names, and keep none alive.

    A function that asks for its own is left alone: before Python 3.13 it has one dictionary, which
    looking at them brings up to date.
    """
    optimized = frame.f_code.co_flags & CO_OPTIMIZED
    if optimized and asks_for_variables(frame.f_code):
        return {}
    own = frame.f_locals
    variables = dict(own)
    if optimized and type(own) is dict:
        own.clear()  # a copy that the frame would hold until it ends
    return variables


@lru_cache(maxsize=1024)
def asks_for_variables(code: CodeType) -> bool:
    """Say whether a function reads its variables by name: `eval(x)` does, `model.eval()` not."""
    if _NAMESPACES.isdisjoint(code.co_names):
        return False
    named = [one for one in dis.get_instructions(code) if one.argval in _NAMESPACES]
    return any(one.opname in _GLOBAL or one.argval == "f_locals" for one in named)
