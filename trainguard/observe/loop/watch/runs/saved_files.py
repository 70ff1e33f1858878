"""Watches which files a process of several saves to, and whether all shards are there."""

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.ranks import SavedFile, SavedShards
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.groups import is_one_of_several
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller

_MOST = 64  # files of a run, and times that each is saved to
_SHARD, _METADATA = ".distcp", ".metadata"  # torch.distributed.checkpoint's own names
_FOLDERS = 4  # of shards that are looked at, the latest: of large models they name many tensors
_NAMED = 4  # shards that are told by name
_AT_ONCE = 2.0  # seconds in which the names of files that are written together change


class SavedFiles(Watcher):
    """The SavedFile and SavedShards events, where there are several processes."""

    makes = ("SavedFile", "SavedShards")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._saved: dict[tuple[str, str], tuple[str, list[int]]] = {}
        self._shards: dict[str, tuple[Path, str]] = {}  # the latest folders of shards

    def install(self, patches: Patches) -> None:
        """Listen to torch.save, whoever holds it under another name."""
        if is_one_of_several():
            patches.redirect(torch.save, tell_after(self._see_saved))

    def finish(self) -> Iterable[Event]:
        """Return the files."""
        for (folder, name), (source, steps) in self._saved.items():
            yield SavedFile(name=name, folder=folder, steps=tuple(steps), source=source)
        for folder, (path, source) in self._shards.items():
            # The last one to be written, once all shards are.
            with suppress(Exception):  # it is not there any more, or is of another maker
                yield _count_shards(folder, path, source)

    def _see_saved(self, _: Any, *args: Any, **kwargs: Any) -> None:
        """Take down where a `torch.save` has saved to."""
        if self.recorder.patches.active:
            self._take_down(args[1] if len(args) > 1 else kwargs.get("f"))

    @shielded
    def _take_down(self, target: Any) -> None:
        """Remember a file, by the folder that it lies in rather than by the way there."""
        if not isinstance(target, str | os.PathLike):
            # An open file has its path for a name; torch.distributed.checkpoint wraps one.
            target = getattr(target, "name", None) or getattr(
                getattr(target, "raw", None), "name", None
            )
        if not isinstance(target, str | os.PathLike):
            return
        path = Path(os.fsdecode(target))
        with suppress(OSError):  # somebody has moved it already
            place = path.parent.stat()
            file = f"{platform.node()}:{place.st_dev}:{place.st_ino}", path.name
            if not S_ISREG(path.stat().st_mode):
                return
            if file in self._saved or len(self._saved) < _MOST:
                steps = self._saved.setdefault(file, (caller(), []))[1]
                steps += [self.recorder.steps] if len(steps) < _MOST else []
            if path.suffix == _SHARD and file[0] not in self._shards:
                self._shards[file[0]] = path.parent.resolve(), caller()
                if len(self._shards) > _FOLDERS:
                    del self._shards[next(iter(self._shards))]


def _count_shards(folder: str, path: Path, source: str) -> SavedShards:
    """Return how many shards a checkpoint of torch.distributed names, and which are not there."""
    # Late: whoever saves shards has it.
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    stored = FileSystemReader(path).read_metadata().storage_data or {}
    names = sorted({str(own.relative_path) for own in stored.values()})
    missing = tuple(name for name in names if not (path / name).exists())
    written = (path / _METADATA).stat().st_mtime
    return SavedShards(
        name=path.name,
        folder=folder,
        shards=len(names),
        missing=missing[:_NAMED],
        lost=len(missing),
        changed=path.stat().st_mtime - written > _AT_ONCE,
        source=source,
    )
