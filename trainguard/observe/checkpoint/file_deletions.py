"""What a run opens in its folder and deletes from it, and what stood beside that."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainguard.observe.checkpoint.file_writes import family

_MOST = 4_096
_EVENTS = frozenset(("os.remove", "os.rmdir", "shutil.rmtree"))


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
        if event not in _EVENTS or self._inside or len(self.found) >= _MOST:
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
        if isinstance(path, str) and len(self.opened) < _MOST:
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
