"""What a session passed over: what is not to run, is out of reach, or lacks its device."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from trainguard.core.errors import DeclarationError
from trainguard.core.settings import Settings
from trainguard.judging.judge import why_absent
from trainguard.report.session_summary import SessionSummary

_MOST_FOLDERS: Final = 4000
_MOST_NAMES: Final = 3


@dataclass(slots=True)
class PassedOver:
    """
    The subjects that were found, and what was deselected of them; the same with workers.

    found: node ids of subjects. deselected: {item: its subject}, by node ids. refused: whether
    pytest refused its arguments.
    """

    found: set[str] = field(default_factory=set)
    deselected: dict[str, str] = field(default_factory=dict)
    refused: bool = False

    def deselect(self, items: Iterable[pytest.Item]) -> None:
        """Remember which of the items that will not run are subjects judged by an invariant."""
        for item in items:
            if item.get_closest_marker("trainguard"):
                owner = item if isinstance(item, pytest.Function) else item.parent or item
                self.deselected[item.nodeid] = owner.nodeid

    def send(self) -> dict[str, Any]:
        """Return what a worker tells its controller, in plain values."""
        return {
            "found": sorted(self.found),
            "deselected": self.deselected,
            "refused": self.refused,
        }

    def take(self, told: dict[str, Any]) -> None:
        """Take in what a worker tells."""
        self.found |= set(told["found"])
        self.deselected |= told["deselected"]
        self.refused |= told["refused"]

    def why_none(self) -> str:
        """Say why no item was to run though subjects may be there, or nothing where none is."""
        found = _count(len(self.found), "subject")
        if self.deselected:
            subjects = _count(len(set(self.deselected.values())), "subject")
            items = _count(len(self.deselected), "item")
            return f"{items} of {subjects} {_was(len(self.deselected))} deselected"
        if self.refused:
            seen = (
                f"{found} {_was(len(self.found))} found, and none" if self.found else "no subject"
            )
            return f"{seen} was judged: pytest refused its arguments"
        return f"{found} {_was(len(self.found))} found, and none was judged" if self.found else ""


def find_outside(config: pytest.Config, is_guard_file: Callable[[Path], bool]) -> list[str]:
    """List the guard files below the root that pytest, led by testpaths, does not come by."""
    if config.args_source != pytest.Config.ArgsSource.TESTPATHS or config.option.pyargs:
        return []
    root = config.rootpath
    reached = {root / argument for argument in config.args}
    found: list[str] = []
    waiting = deque([root])  # the nearest first
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            break
        folder = waiting.popleft()
        if folder in reached or _is_left_alone(config, folder):
            continue
        folders, files = _list_folder(folder)
        waiting += folders
        found += [
            file.relative_to(root).as_posix()
            for file in files
            if file not in reached and is_guard_file(file) and not _is_ignored(config, file)
        ]
    return found


def describe_outside(files: list[str], testpaths: Iterable[str]) -> str:
    """Say which guard files lie outside of testpaths, and what to do about it."""
    named, more = ", ".join(files[:_MOST_NAMES]), len(files) - _MOST_NAMES
    lie, folders = ("lies", "its folder") if len(files) == 1 else ("lie", "their folders")
    return (
        f"no subject was found: {named}{f' and {more} more' if more > 0 else ''} {lie} outside of"
        f" testpaths = {', '.join(testpaths)}. Add {folders} there, or run pytest --trainguard ."
    )


def describe_absent(summary: SessionSummary, settings: Settings) -> str:
    """Say that no device that was named is here and nothing was judged on one, or nothing."""
    asked = [entry for entry in summary.entries if entry["device"] in settings.devices]
    if not asked or any(entry["outcome"] != "skipped" for entry in asked):
        return ""
    try:
        absent = [why_absent(device) for device in settings.devices]
    except DeclarationError:  # its items have failed
        return ""
    if not all(absent):
        return ""
    on = f" on {', '.join(settings.devices)}" if summary.ran else ""
    return f"nothing was judged{on}: {'; '.join(dict.fromkeys(absent))}"


def _is_left_alone(config: pytest.Config, folder: Path) -> bool:
    """Say whether nothing of the team's own is to be looked for in a folder."""
    if folder == config.rootpath:
        return False
    aside = folder.name.startswith(".") or folder.name in ("node_modules", "__pycache__")
    return aside or (folder / "pyvenv.cfg").is_file() or _is_ignored(config, folder)


def _is_ignored(config: pytest.Config, path: Path) -> bool:
    """Say whether pytest would collect nothing there, whatever its arguments."""
    return bool(config.hook.pytest_ignore_collect(collection_path=path, config=config))


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder, in order; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return [], []
    folders = [Path(entry.path) for entry in inside if entry.is_dir(follow_symlinks=False)]
    return folders, [Path(entry.path) for entry in inside if entry.is_file()]


def _count(number: int, word: str) -> str:
    """Return a number with its word: `1 item`, `2 items`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _was(number: int) -> str:
    """Return the verb that goes with so many."""
    return "was" if number == 1 else "were"
