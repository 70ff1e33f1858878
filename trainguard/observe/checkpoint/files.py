"""What a run does to files: what it writes and reads, how safely, and what it deletes."""

import inspect
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from trainguard.events.checkpoint import Load
from trainguard.observe.tools.patches import Patches, tell_before
from trainguard.observe.tools.user_line import foreign

_MOST_DELETIONS = 4_096
_EVENTS = frozenset(("os.remove", "os.rmdir", "shutil.rmtree"))
_MOST_CALLS = 32  # calls that are told
_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_NO_WEIGHTS = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_MOST_FILES = 20_000  # files that are looked at
_QUIET = 3  # looks in a row that find nothing new, before a writer in the background has ended
_PAUSE = 0.05  # seconds between them
_PATIENCE = 10.0
_NUMBER = re.compile(r"\d+")
Mark = tuple[int, int, int]  # of a file: its inode, its size and when it was written


@dataclass(frozen=True, slots=True)
class FileDeletion:
    """
    One numbered file or folder that was deleted.

    step: how many steps had been made. siblings: those of its kind that stood there, itself too.
    """

    step: int
    name: str
    siblings: tuple[str, ...]


class FileDeletions:
    """
    Listens to all that this process deletes, and reads, by Python's audit events.

    opened: the files of the folder that were read.

    What hears them cannot be taken away again: for a process of its own only.
    """

    def __init__(self, directory: Path, steps: Callable[[], int]) -> None:
        self.directory, self.steps = directory.resolve(), steps
        self.found: list[FileDeletion] = []
        self.opened: set[str] = set()
        self._inside = False

    def install(self) -> None:
        """Begin to listen."""
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take down what is about to be deleted; what a deleted folder holds is part of it."""
        if event == "open" and isinstance(arguments[1], str) and "r" in arguments[1]:
            self._opens(arguments[0])
        if event not in _EVENTS or self._inside or len(self.found) >= _MOST_DELETIONS:
            return
        path, directory = arguments[0], arguments[1] if len(arguments) > 1 else None
        if not isinstance(path, str | os.PathLike) or directory not in (None, -1):
            return
        self._inside = True
        try:
            self._take_down(Path(path))
        except OSError:
            pass
        finally:
            self._inside = False

    def _opens(self, path: Any) -> None:
        """Remember a file of the folder that is read."""
        if isinstance(path, str) and len(self.opened) < _MOST_DELETIONS:
            full = Path(path).absolute()
            if full.is_relative_to(self.directory):
                self.opened.add(full.relative_to(self.directory).as_posix())

    def _take_down(self, path: Path) -> None:
        """Remember an entry of the folder that has a number, with those of its kind."""
        full = path.absolute().parent.resolve() / path.name
        if not full.is_relative_to(self.directory) or full == self.directory or not full.exists():
            return
        kind, numbers = family(full.name)
        if numbers:
            siblings = sorted(p.name for p in full.parent.iterdir() if family(p.name)[0] == kind)
            self.found.append(FileDeletion(self.steps(), full.name, tuple(siblings)))


class FileReads:
    """
    The calls of torch.save and pickle.dump, counted, and those of torch.load and pickle.load.

    A call counts as the team's where the very line that makes it is theirs: what a library loads
    with is the library's affair.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.written = 0
        self._calls: list[tuple[str, Path, str]] = []

    def install(self, patches: Patches) -> None:
        """Listen to the functions that write and read."""
        count = tell_before(self._count_written)
        patches.replace(torch, "save", count)
        patches.replace(pickle, "dump", count)
        if "safetensors.torch" in sys.modules:
            for name in ("save_file", "save_model"):
                patches.replace(sys.modules["safetensors.torch"], name, count)
        patches.replace(torch, "load", lambda load: self._reads(load, "torch.load"))
        patches.replace(pickle, "load", lambda load: self._reads(load, "pickle.load"))

    def list_loads(self) -> list[Load]:
        """Return the calls that may have executed what stood in a file, each line once."""
        told = {}
        for call, file, source in self._calls:
            if file.is_file() and source not in told:
                obstacle = _obstacle(file) if call == "torch.load" else ""
                told[source] = Load(call=call, file=file.name, obstacle=obstacle, source=source)
        return list(told.values())

    def _count_written(self, *_: Any, **__: Any) -> None:
        """Count what is written."""
        self.written += 1

    def _reads(self, load: Callable[..., Any], call: str) -> Callable[..., Any]:
        """Return a function that reads, and remembers which line of the team's reads unsafely."""

        @wraps(load)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Read."""
            frame = sys._getframe(1)  # noqa: SLF001 the one way to look at callers cheaply
            if foreign(frame.f_code.co_filename) and len(self._calls) < _MOST_CALLS:
                file = self._file(args, kwargs)
                if file is not None and not (call == "torch.load" and _is_safe(load, kwargs)):
                    source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    self._calls.append((call, file, source))
            return load(*args, **kwargs)

        return wrapper

    def _file(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path | None:
        """Return the file of the run that is read, if it is one."""
        given = args[0] if args else kwargs.get("f", kwargs.get("file"))
        name = given if isinstance(given, str | os.PathLike) else getattr(given, "name", None)
        if not isinstance(name, str | os.PathLike):
            return None
        path = Path(name).resolve()
        return path if path.is_relative_to(self.directory) else None


def _is_safe(load: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Say whether torch.load is told, or takes it upon itself, to execute nothing."""
    if os.environ.get(_WEIGHTS, "").lower() in ("1", "y", "yes", "true"):
        return True
    if os.environ.get(_NO_WEIGHTS, "").lower() in ("1", "y", "yes", "true"):
        return False
    asked = kwargs.get("weights_only")
    if asked is not None:
        return bool(asked)
    if kwargs.get("pickle_module") is not None:
        return False
    return _safe_by_default(load)


def _safe_by_default(load: Callable[..., Any]) -> bool:
    """Say whether this torch executes nothing unless it is told to, as from 2.6 on."""
    default = inspect.signature(load).parameters["weights_only"].default
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return default is None and (major, minor) >= (2, 6)


def _obstacle(file: Path) -> str:
    """Return what keeps a file from being loaded safely; "" where nothing does."""
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 whatever it is, it is what is told
        words = str(error)
        for start in ("Unsupported global: GLOBAL ", "Unsupported class "):
            if start in words:
                return words.partition(start)[2].split()[0].rstrip(".,")
        return type(error).__name__
    return ""


@dataclass(frozen=True, slots=True)
class Save:
    """Files that were written after so many steps, with their sizes."""

    step: int
    files: dict[str, int]


@dataclass(slots=True)
class FileWrites:
    """A folder that is looked at again and again; marks: of each file, at the last look."""

    path: Path
    marks: dict[str, Mark] = field(default_factory=dict)

    def find_changes(self) -> dict[str, int]:
        """Return the sizes of files that came, or were written anew, since; a log only grows."""
        before, self.marks = self.marks, dict(scan_files(self.path))
        return {
            name: mark[1] for name, mark in self.marks.items() if _is_new(before.get(name), mark)
        }

    def settle(self) -> None:
        """Wait until nobody writes any more, as a save in the background does."""
        quiet, until = 0, time.monotonic() + _PATIENCE
        last = dict(scan_files(self.path))
        while quiet < _QUIET and time.monotonic() < until:
            time.sleep(_PAUSE)
            now = dict(scan_files(self.path))
            quiet, last = (quiet + 1, now) if now == last else (0, now)

    def lost_links(self) -> list[str]:
        """Return the links whose target is gone."""
        if not self.path.is_dir():
            return []
        return sorted(p.name for p in self.path.iterdir() if p.is_symlink() and not p.exists())


def scan_files(path: Path) -> Iterator[tuple[str, Mark]]:
    """Yield each file below a folder with its mark; those that are gone by then are left out."""
    count = 0
    for root, _, names in os.walk(path):
        for name in names:
            file = Path(root, name)
            try:
                stat = file.lstat()
            except OSError:
                continue
            count += 1
            if count > _MOST_FILES:
                return
            yield file.relative_to(path).as_posix(), (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def family(entry: str) -> tuple[str, tuple[int, ...]]:
    """Return what the numbered entries of one kind have in common, and the numbers of this one."""
    head, slash, name = entry.rpartition("/")
    return f"{head}{slash}{_NUMBER.sub('{}', name)}", tuple(map(int, _NUMBER.findall(name)))


def kinds(name: str) -> set[str]:
    """Return what a file and the folders that it is in are called, whatever their numbers."""
    parts = [family(part)[0] for part in name.split("/")]
    return {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}


def newer(name: str, folder: Path) -> set[str]:
    """Return the entries with a higher number beside a file, or beside a folder that it is in."""
    found, parts = set(), name.split("/")
    for end in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:end])
        kind, numbers = family(path.name)
        for other in path.parent.iterdir() if numbers and path.parent.is_dir() else ():
            if family(other.name)[0] == kind and family(other.name)[1] > numbers:
                found.add(other.relative_to(folder).as_posix())
    return found


def _is_new(before: Mark | None, now: Mark) -> bool:
    """Say whether a file was written anew, rather than gone on with."""
    if before is None or before[0] != now[0]:
        return True
    return before[2] != now[2] and now[1] <= before[1]
