"""Which line of the user's code is running: `train.py:41`."""

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[2])
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple({_PATHS["purelib"], _PATHS["platlib"]})
_CELL = "<ipython-input-"  # how the code of a cell is called, outside of notebooks
_STANDARD = tuple({_PATHS["stdlib"], _PATHS["platstdlib"]})


@cache
def foreign(file: str) -> bool:
    """Say whether a file is the user's own: not ours, not Python's, not an installed library's."""
    return not file.startswith((_PACKAGE, "<", *_LIBRARIES, *_STANDARD)) or file.startswith(_CELL)


def caller(depth: int = 1) -> str:
    """Return `file:line` of the innermost frame of the user's own code, or nothing."""
    frame = user_frame(sys._getframe(depth))  # noqa: SLF001 the one way to look at callers cheaply
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own code, from a frame outwards."""
    while frame is not None and not foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
