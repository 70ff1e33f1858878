"""Where settings are found: in the nearest pyproject.toml that has any, within a checkout."""

from pathlib import Path

import pytest

from trainguard.core.errors import DeclarationError
from trainguard.core.settings import Settings, find_settings, from_pyproject

STRICT = "[tool.trainguard]\nstrict = true\n"


def write(folder: Path, text: str) -> None:
    """Write a pyproject.toml into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_settings_above_the_working_folder_are_found(tmp_path) -> None:
    """A pyproject.toml without a table of ours hides none above it; the root of pytest is exact."""
    (tmp_path / ".git").mkdir()
    write(tmp_path, STRICT)
    write(tmp_path / "ml", "[project]\nname = 'ml'\n")
    (tmp_path / "ml" / "jobs").mkdir()
    assert find_settings(tmp_path / "ml" / "jobs").strict
    assert from_pyproject(tmp_path / "ml") == Settings()


def test_the_nearest_settings_count(tmp_path) -> None:
    """They are not merged; an empty table is one too."""
    write(tmp_path, STRICT)
    write(tmp_path / "ml", "[tool.trainguard]\n")
    assert find_settings(tmp_path) == Settings(strict=True)
    assert find_settings(tmp_path / "ml") == Settings()


@pytest.mark.parametrize("is_worktree", [False, True])
def test_settings_of_another_checkout_do_not_count(tmp_path, is_worktree) -> None:
    """The search ends at the first folder with a .git entry, which is a file in a worktree."""
    write(tmp_path, STRICT)
    inner = tmp_path / "inner" / "jobs"
    inner.mkdir(parents=True)
    git = tmp_path / "inner" / ".git"
    if is_worktree:
        git.write_text("gitdir: elsewhere\n", encoding="utf-8")
    else:
        git.mkdir()
    assert find_settings(inner) == Settings()


def test_settings_above_that_cannot_be_read_are_told(tmp_path) -> None:
    """A broken file on the way up is named, as it is in the working folder."""
    write(tmp_path, "[tool.trainguard\n")
    (tmp_path / "ml").mkdir()
    with pytest.raises(DeclarationError, match="is no valid TOML"):
        find_settings(tmp_path / "ml")
