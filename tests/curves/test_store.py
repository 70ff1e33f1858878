"""The files of snapshots: each name has one of its own."""

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.curves.curve import Curve, Unreadable
from trainguard.curves.store import file_name, read_text
from trainguard.pytest_plugin.curve_snapshots import _prefix

NAMES = st.text(max_size=6) | st.text("x/", min_size=58, max_size=150)


@settings(max_examples=50, deadline=None)
@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_names_share_a_file(owner: str, name: str, other_owner: str, other: str) -> None:
    """Whatever they hold and however long they are, on any system, with room for a draft."""
    files = [file_name(owner, f"{name}-cpu", "curve"), file_name(other_owner, f"{other}-cpu", "c")]
    assert all(file.isascii() and len(file) <= 240 for file in files)
    assert all(file.rpartition("]")[0].endswith("-cpu") for file in files)
    assert not set('/\\:*?<>|"') & set("".join(files))
    if (owner, name) != (other_owner, other):
        assert files[0].removesuffix("curve") != files[1].removesuffix("c")


@pytest.mark.parametrize("names", [("a/b", "ab"), ("a:", "a"), ("a%2Fb", "a/b"), ("[", "%5B")])
def test_names_that_were_one(names: tuple[str, str]) -> None:
    """What was left out is escaped, and so is the sign of an escape."""
    assert len({file_name("test_a", name, "curve") for name in names}) == 2
    assert len({file_name(f"test_a[{name}]", "loss-cpu", "curve") for name in names}) == 2


def test_runs_of_one_name_are_numbered() -> None:
    """Past the names that are taken."""
    item = types.SimpleNamespace(stash={})
    told = [_prefix(item, name) for name in ("", "a", "a.1", "a", "1", "", "a")]
    assert told == ["", "a-", "a.1-", "a.2-", "1-", "2-", "a.3-"]


def test_what_is_no_file(tmp_path) -> None:
    """A folder or a link that leads to itself is read, and is no curve."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("folder", "loop"):
        text = read_text(tmp_path / name)
        assert text is not None
        with pytest.raises(Unreadable, match="it is no curve of trainguard"):
            Curve.from_text(text)
