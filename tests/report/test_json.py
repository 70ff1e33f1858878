"""The files of `trainguard run`: whole or not at all."""

import os

import pytest

from trainguard.core.errors import DeclarationError
from trainguard.report.json import check_writable, write_whole


def test_a_file_that_cannot_be_written_whole(tmp_path) -> None:
    """What was there before stays, and no draft is left behind."""
    file = tmp_path / "out.json"
    file.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new " * 10_000 + "\ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["out.json"]  # noqa: PTH208


def test_a_folder_that_went_away(tmp_path) -> None:
    """A folder that the script removed in the meantime is made again."""
    write_whole(tmp_path / "results" / "out.json", "new")
    assert (tmp_path / "results" / "out.json").read_text(encoding="utf-8") == "new"


@pytest.mark.skipif(not hasattr(os, "umask"), reason="needs the modes of Unix")
def test_a_file_has_the_usual_mode(tmp_path) -> None:
    """Others may read it as they may read any file that the user writes."""
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "out.json", "new")
    assert (tmp_path / "out.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_where_a_file_can_be(tmp_path, monkeypatch) -> None:
    """A place is checked before the run, and does not depend on where the script goes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    path = check_writable("--json", (tmp_path / "out.json").relative_to(tmp_path))
    assert path == tmp_path / "out.json"
    with pytest.raises(DeclarationError, match="^--json .* is a folder. Give the name of a file."):
        check_writable("--json", tmp_path / "taken")
    with pytest.raises(DeclarationError, match="there is no folder .*no. Make it first."):
        check_writable("--json", tmp_path / "no" / "out.json")
