"""SIGKILL at random moments of every writer: whoever reads has the old file or the new one."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.data import Snapshot, SnapshotCollection

from trainguard.command.output import write_file
from trainguard.core.files import write_whole
from trainguard.observe.memory import snapshot
from trainguard.pytest_plugin.syrupy_store import CurveExtension

KILLS = 25  # of each writer
LONG = "x" * 200_000


def write_curve(file: Path, content: str) -> None:
    """Write a curve as --snapshot-update does."""
    kept = SnapshotCollection(location=str(file))
    kept.add(Snapshot(name="x", data=content))
    CurveExtension.write_snapshot_collection(snapshot_collection=kept)


WRITERS: dict[str, Callable[[Path, str], object]] = {
    "--json, --trace, --html and pictures": lambda f, c: write_file(f, lambda: c, sys.stderr),
    "curves": write_curve,
    "memory": lambda f, c: snapshot._write(f, {"peak": 1, "told": c}),
    "all of them": write_whole,
}


def write_on(write: Callable[[Path, str], object], file: Path) -> None:
    """Write one content after the other, each whole of one letter, until the end."""
    for letter in "abcdefgh" * 10_000:
        write(file, LONG.replace("x", letter))


@pytest.mark.parametrize("writer", WRITERS)
def test_kills(writer: str, tmp_path: Path, bench) -> None:
    """What is there is whole, and the next one that writes takes away what was begun."""
    dice, file = random.Random(writer), tmp_path / "kept"
    WRITERS[writer](file, LONG)
    for number in range(KILLS):
        child = os.fork()
        if not child:
            write_on(WRITERS[writer], file)
            os._exit(0)
        time.sleep(dice.uniform(0.001, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = file.read_text(encoding="utf-8")
        letters = {letter for letter in "abcdefghx" if LONG.replace("x", letter) in found}
        bench.hold((writer, number), "" if letters else f"it holds {found[:99]} of {len(found)}")
    WRITERS[writer](file, LONG)
    bench.hold((writer, "drafts"), [left for left in tmp_path.iterdir() if left != file])


def test_a_reader_beside_a_writer(tmp_path: Path, bench) -> None:
    """Nobody ever reads a half."""
    file = tmp_path / "kept"
    write_whole(file, LONG)
    child = os.fork()
    if not child:
        write_on(write_whole, file)
        os._exit(0)
    try:
        for number in range(200):
            found = file.read_text(encoding="utf-8")
            whole = len(found) == len(LONG) and len(set(found)) == 1
            bench.hold(number, "" if whole else f"{len(found)} of {len(LONG)}")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
