"""Watches which files a process of several saves to."""

import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.ranks import SavedFile
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.tools.groups import is_one_of_several
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_MOST = 64  # files of a run, and times that each is saved to


class SavedFiles(Watcher):
    """The SavedFile events, where a launcher, or a script, has started several processes."""

    makes = ("SavedFile",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._saved: dict[tuple[str, str], tuple[str, list[int]]] = {}

    def install(self, patches: Patches) -> None:
        """Listen to torch.save, whoever holds it under another name."""
        if is_one_of_several():
            patches.redirect(torch.save, self._saves)

    def finish(self) -> Iterable[Event]:
        """Return the files."""
        for (folder, name), (source, steps) in self._saved.items():
            yield SavedFile(name=name, folder=folder, steps=tuple(steps), source=source)

    def _saves(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.save` that tells where it has saved to."""

        @wraps(save)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Save."""
            result = save(*args, **kwargs)
            if self.recorder.patches.active:
                self._take_down(args[1] if len(args) > 1 else kwargs.get("f"))
            return result

        return wrapper

    @shielded
    def _take_down(self, target: Any) -> None:
        """Remember a file, by the folder that it lies in rather than by the way there."""
        if not isinstance(target, str | os.PathLike):
            target = getattr(target, "name", None)  # an open file has its path for a name
        if not isinstance(target, str | os.PathLike):
            return
        path = Path(os.fsdecode(target))
        with suppress(OSError):  # somebody has moved it already
            place = path.parent.stat()
            file = f"{platform.node()}:{place.st_dev}:{place.st_ino}", path.name
            known = file in self._saved or len(self._saved) < _MOST
            if known and S_ISREG(path.stat().st_mode):
                steps = self._saved.setdefault(file, (caller(), []))[1]
                steps += [self.recorder.steps] if len(steps) < _MOST else []
