"""The folder of a run: what was written into it between two steps, and what stands in it."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MOST = 20_000  # files that are looked at
_QUIET = 3  # looks in a row that find nothing new, before a writer in the background has ended
_PAUSE = 0.05  # seconds between them
_PATIENCE = 10.0
_NUMBER = re.compile(r"\d+")

Mark = tuple[int, int, int]  # of a file: its inode, its size and when it was written


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
            if count > _MOST:
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
