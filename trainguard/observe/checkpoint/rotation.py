"""The probe of a rotation: what a run deletes, and what a function does that is called for it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from trainguard.core.errors import is_ours
from trainguard.events.checkpoint import Rotation
from trainguard.observe.checkpoint.files import FileDeletion, family
from trainguard.observe.checkpoint.recorder import Account
from trainguard.observe.checkpoint.runs import path_for
from trainguard.observe.tools.isolation import deadline, isolate
from trainguard.subjects.checkpoint import DIRECTORIES, RANKS, Checkpoint, named_parameter

_CROSSINGS = (10, 100, 1000)  # where a number gets a digit more
_FIRST_TIME = 1_700_000_000  # seconds; the files of a folder are a minute apart
_MINUTE = 60
_WORDS = ("best", "final")  # what people put in the place of a step
_FOREIGN = ("config.yaml", "train.log", "notes_2.txt", "events.out.tfevents.17.host")


def deletions(whole: Account, keep: int) -> Iterator[Rotation]:
    """Yield what a run deleted of its numbered files, and links that lost their target."""
    for deletion in whole.deletions:
        yield _make_event(deletion, keep, f"after step {deletion.step}")
    for step, name in whole.lost:
        yield Rotation(quantity="link", at=f"after step {step}", name=name)


def rotate_folders(subject: Checkpoint, base: Path) -> Iterator[Rotation]:
    """Yield what the function that rotates does to folders with all kinds of files in them."""
    folder = base / "rotated"
    keep = subject.keep or 1
    for case in (_numbers, _rotate_touched, _others, _on_another_rank):
        rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield from case(subject, folder, keep)


def _numbers(subject: Checkpoint, folder: Path, keep: int) -> Iterator[Rotation]:
    """Rotate after each save, across the numbers that have a digit more than the one before."""
    for crossing in _CROSSINGS:
        rmtree(folder)
        folder.mkdir()
        for number in range(crossing - keep - 1, crossing + keep + 1):
            if number >= 0:
                name = subject.files.format(number)
                _write(folder / name, number)
                yield from _call_rotation(subject, folder, keep, f"when {name} was written")
        kept = sum(1 for _ in folder.iterdir())
        yield Rotation(quantity="kept", at=f"when {name} was written", count=kept, keep=keep)


def _rotate_touched(subject: Checkpoint, folder: Path, keep: int) -> Iterator[Rotation]:
    """Rotate in a folder that was copied, the newest first, so that the times say nothing."""
    numbers = range(10 - keep, 11)
    for number in numbers:
        _write(folder / subject.files.format(number), -number)
    for told in _call_rotation(subject, folder, keep, "when the folder had been copied"):
        yield replace(told, touched=True)


def _others(subject: Checkpoint, folder: Path, keep: int) -> Iterator[Rotation]:
    """Rotate where files stand that are none of its own."""
    names = [*(subject.files.format(word) for word in _WORDS), *_FOREIGN]
    for place, name in enumerate(names):
        _write(folder / name, place - len(names))
    (folder / "samples").mkdir()
    for number in range(1, keep + 3):
        _write(folder / subject.files.format(number), number)
    at = f"where {names[0]} stands too"
    for told in _call_rotation(subject, folder, keep, at):
        if told.quantity == "raised":
            yield told
    for name in (*names, "samples"):
        if not (folder / name).exists():
            yield Rotation(quantity="foreign", at=at, name=name)


def _on_another_rank(subject: Checkpoint, folder: Path, keep: int) -> Iterator[Rotation]:
    """Rotate as a process that is not the first; nothing is its to delete."""
    rank = named_parameter(_function(subject), None, RANKS)
    if not rank:
        return
    for number in range(1, keep + 3):
        _write(folder / subject.files.format(number), number)
    for told in _call_rotation(subject, folder, keep, f"called with {rank}=1", {rank: 1}):
        yield replace(told, quantity="rank") if told.quantity == "deleted" else told


def _call_rotation(
    subject: Checkpoint, folder: Path, keep: int, at: str, more: dict[str, Any] | None = None
) -> Iterator[Rotation]:
    """Call the function that rotates, and yield what is gone, or what it raised."""
    function = _function(subject)
    directory = named_parameter(function, subject.directory, DIRECTORIES)
    rank = named_parameter(function, None, RANKS)
    given = {**({rank: 0} if rank else {}), **subject.arguments, **(more or {})}
    before = {path.name for path in folder.iterdir()}
    try:
        with isolate(), deadline(subject.timeout):
            function(**{directory: path_for(function, directory, folder)}, **given)
    except Exception as error:
        if is_ours(error):
            raise
        words = " ".join(str(error).split())
        yield Rotation(quantity="raised", at=at, detail=f"{type(error).__name__}: {words}")
    kind = family(subject.files.format(0))[0]
    own = sorted(name for name in before if family(name)[0] == kind)
    gone = before - {path.name for path in folder.iterdir()}
    remaining = [name for name in own if name not in gone]
    for name in sorted(gone & set(own)):
        # Against what remains: several may be deleted at once.
        yield _make_event(FileDeletion(0, name, (*remaining, name)), keep, at)


def _make_event(deletion: FileDeletion, keep: int, at: str) -> Rotation:
    """Return what was deleted, and what of its kind was left."""
    number = family(deletion.name)[1]
    others = [name for name in deletion.siblings if name != deletion.name]
    return Rotation(
        quantity="deleted",
        at=at,
        name=deletion.name,
        number=number,
        newer=sum(family(name)[1] > number for name in others),
        older=sum(family(name)[1] < number for name in others),
        alphabetical=all(deletion.name < name for name in others),
        keep=keep,
    )


def _function(subject: Checkpoint) -> Any:
    """Return the function that rotates."""
    assert subject.rotate is not None
    return subject.rotate


def _write(path: Path, minute: int) -> None:
    """Write a file that was written at a certain minute; a name without an ending is a folder."""
    if path.suffix or path.name in _FOREIGN:
        path.write_bytes(b"checkpoint")
    else:
        path.mkdir()
        (path / "model.pt").write_bytes(b"checkpoint")
    when = _FIRST_TIME + minute * _MINUTE
    os.utime(path, (when, when))
