"""What was written into a folder, and what stands beside it."""

from pathlib import Path

import pytest

from trainguard.observe.checkpoint.files import FileWrites, family, kinds, newer


def test_files_that_are_new_or_written_anew_have_changed(tmp_path: Path) -> None:
    """A log that only grows has not."""
    folder = FileWrites(tmp_path)
    (tmp_path / "train.log").write_text("1\n")
    (tmp_path / "a.pt").write_text("12345")
    assert folder.find_changes() == {"train.log": 2, "a.pt": 5}
    with (tmp_path / "train.log").open("a") as log:
        log.write("2\n")
    assert folder.find_changes() == {}
    (tmp_path / "a.new").write_text("1234567")
    (tmp_path / "a.new").replace(tmp_path / "a.pt")
    assert folder.find_changes() == {"a.pt": 7}
    (tmp_path / "a.pt").write_text("123")
    assert folder.find_changes() == {"a.pt": 3}


def test_files_in_folders_and_links_are_seen(tmp_path: Path) -> None:
    """A sharded checkpoint is a folder; a link without target is told."""
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_2" / "0.bin").write_text("1")
    (tmp_path / "last").symlink_to("step_1")
    folder = FileWrites(tmp_path)
    assert set(folder.find_changes()) == {"step_2/0.bin", "last"}
    assert folder.lost_links() == ["last"]


@pytest.mark.parametrize(
    ("name", "kind", "numbers"),
    [
        ("step_10.pt", "step_{}.pt", (10,)),
        ("run_2/epoch=3-step=40.ckpt", "run_2/epoch={}-step={}.ckpt", (3, 40)),
        ("last.pt", "last.pt", ()),
    ],
)
def test_the_family_of_a_name(name: str, kind: str, numbers: tuple) -> None:
    """All numbers of its last part count, the first one most."""
    assert family(name) == (kind, numbers)


def test_the_kinds_of_a_path() -> None:
    """Those of the folders that it is in, too."""
    assert kinds("checkpoint-9/model.pt") == {"checkpoint-{}", "checkpoint-{}/model.pt"}


def test_newer_ones_stand_beside_a_file_or_its_folder(tmp_path: Path) -> None:
    """By number; names of other kinds are not compared."""
    for name in ("step_9.pt", "step_10.pt", "final_11.pt"):
        (tmp_path / name).touch()
    for name in ("checkpoint-2", "checkpoint-10"):
        (tmp_path / name).mkdir()
    assert newer("step_9.pt", tmp_path) == {"step_10.pt"}
    assert newer("step_10.pt", tmp_path) == set()
    assert newer("checkpoint-2/model.pt", tmp_path) == {"checkpoint-10"}


def test_a_folder_settles(tmp_path: Path) -> None:
    """Where nobody writes it does so at once, and what is not there is empty."""
    FileWrites(tmp_path / "none").settle()
    assert FileWrites(tmp_path / "none").find_changes() == {}
    assert FileWrites(tmp_path / "none").lost_links() == []
    assert list(tmp_path.iterdir()) == []
