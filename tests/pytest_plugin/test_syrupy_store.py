"""The syrupy extension for curves: how it writes, compares, and what it takes for its own."""

import threading
from pathlib import Path

import pytest
from syrupy.data import Snapshot, SnapshotCollection

from trainguard.curves.curve import Curve, Unreadable
from trainguard.pytest_plugin.syrupy_store import CurveExtension

POINTS = 2000
CURVES = [
    Curve("loss", tuple(range(POINTS)), ((start,) * POINTS,), (0.0,) * POINTS, POINTS)
    for start in (1.0, 2.0)
]


def write(file: Path, text: str) -> None:
    """Write a snapshot as syrupy has it written."""
    collection = SnapshotCollection(location=str(file))
    collection.add(Snapshot(name="loss-cpu", data=text))
    CurveExtension.write_snapshot_collection(snapshot_collection=collection)


def test_whoever_reads_meanwhile_has_a_whole_file(tmp_path: Path) -> None:
    """The old curve or the new one, and never a part of either."""
    file = tmp_path / "test_train[loss-cpu].curve"
    write(file, CURVES[0].to_text())
    over = threading.Event()
    torn: list[str] = []

    def read() -> None:
        """Read until the writing is over."""
        while not over.is_set():
            try:
                Curve.from_text(file.read_text(encoding="utf-8"))
            except Unreadable as fault:
                torn.append(str(fault))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        write(file, CURVES[turn % 2].to_text())
    over.set()
    reader.join()
    assert torn == []
    assert [kept.name for kept in tmp_path.iterdir()] == [file.name]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    """Nothing else stays behind either."""
    file = tmp_path / "test_train[loss-cpu].curve"
    write(file, CURVES[0].to_text())

    def fail(_descriptor: int) -> None:
        """Stand for a disk that is full."""
        raise OSError("no space left on device")

    monkeypatch.setattr("trainguard.core.files.os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write(file, CURVES[1].to_text())
    assert file.read_text(encoding="utf-8") == CURVES[0].to_text()
    assert [kept.name for kept in tmp_path.iterdir()] == [file.name]


def test_a_curve_is_compared_by_its_band() -> None:
    """Used by itself, as any extension of syrupy, it knows what a band is."""
    extension = CurveExtension()
    text = extension.serialize(CURVES[0])
    nearly = Curve("loss", CURVES[0].steps, ((1.0 + 5e-7,) * POINTS,), (), POINTS).to_text()
    assert extension.matches(serialized_data=nearly, snapshot_data=text)
    assert not extension.matches(serialized_data=CURVES[1].to_text(), snapshot_data=text)
    assert not extension.matches(serialized_data=nearly, snapshot_data=text[:500])
