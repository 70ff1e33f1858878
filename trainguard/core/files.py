"""Files that are written whole or not at all, whatever ends the process that writes them."""

import glob
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from trainguard.core.errors import DeclarationError

_DRAFT = ".trainguard"  # how the name of a file ends that is not whole yet
_LONGEST = 40  # characters of its own name in that of its draft; systems allow 255 bytes


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one move, so that nobody ever reads a half of it."""
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))  # a link stays a link, unless it leads to itself
    path.parent.mkdir(parents=True, exist_ok=True)  # the script may have removed it
    # The name may be as long as names can be.
    start = f".{path.name[:_LONGEST]}."
    for left in path.parent.glob(f"{glob.escape(start)}*{_DRAFT}"):
        if not is_running(left.name.removeprefix(start).removesuffix(_DRAFT)):
            left.unlink(missing_ok=True)
    draft = path.with_name(f"{start}{os.getpid()}{_DRAFT}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_installed(option: str, library: str) -> None:
    """Raise where a library that an option needs is not there; the extra `report` has it."""
    if find_spec(library) is None:
        raise DeclarationError(
            f"{option} needs {library}, which is not installed."
            " Install it: pip install 'trainguard[report]'."
        )


def is_running(process: str) -> bool:
    """Say whether there is a process of this number; where nobody knows, there may be."""
    if not process.isdecimal() or os.name != "posix":
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    with suppress(OSError):  # on Linux alone: dead, and nobody has asked how it ended
        return ") Z " not in Path("/proc", process, "stat").read_text(errors="replace")
    return True


def check_writable(option: str, path: Path) -> Path:
    """Return the path from the root, whatever the script enters; raises where it cannot be."""
    path = Path.cwd() / path
    if os.path.isdir(path):  # noqa: PTH112 Path raises for what is too long to be a path
        raise DeclarationError(f"{option} {path} is a folder. Give the name of a file.")
    if not os.path.isdir(path.parent):  # noqa: PTH112 likewise
        raise DeclarationError(f"{option} {path}: there is no folder {path.parent}. Make it first.")
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:  # too long a name, a link that leads to itself
        raise DeclarationError(f"{option} {path} cannot be written: {error.strerror}.") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DeclarationError(f"{option} {path} cannot be written. Give another place.")
    return path
