"""What is written and read, and whether reading it may execute code."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from trainguard.events.checkpoint import Load
from trainguard.observe.checkpoint.files import FileReads
from trainguard.observe.tools.patches import Patches


def heard(folder: Path, code: Callable[[], object]) -> tuple[int, list[Load]]:
    """Return how often something was written, and which loads were unsafe, while code ran."""
    loads, patches = FileReads(folder), Patches()
    loads.install(patches)
    patches.active = True
    try:
        code()
    finally:
        patches.undo()
    return loads.written, loads.list_loads()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with tensors and plain values."""
    torch.save({"weight": torch.zeros(3), "step": 4, "names": ["a"]}, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_a_safe_load_is_not_told(file: Path) -> None:
    """Whether from a path or an open file."""
    assert heard(file.parent, lambda: torch.load(file, weights_only=True)) == (0, [])
    with file.open("rb") as opened:
        assert heard(file.parent, lambda: torch.load(opened, weights_only=True)) == (0, [])


def test_an_unsafe_load_is_told_with_its_line(file: Path) -> None:
    """The file would have loaded safely."""
    _, (load,) = heard(file.parent, lambda: torch.load(file, weights_only=False))
    assert (load.call, load.file, load.obstacle) == ("torch.load", "a.pt", "")
    assert load.source.startswith(__file__)


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    """The state of NumPy's generator is an array, which is no tensor."""
    torch.save(np.random.get_state(), tmp_path / "a.pt")
    _, (load,) = heard(tmp_path, lambda: torch.load(tmp_path / "a.pt", weights_only=False))
    assert "numpy" in load.obstacle


def test_pickle_is_told(tmp_path: Path) -> None:
    """It has no safe way."""
    with (tmp_path / "a.pkl").open("wb") as out:
        written, _ = heard(tmp_path, lambda: pickle.dump([1], out))
    with (tmp_path / "a.pkl").open("rb") as opened:
        _, (load,) = heard(tmp_path, lambda: pickle.load(opened))
    assert (written, load.call) == (1, "pickle.load")


def test_other_files_are_not_told(file: Path, tmp_path: Path) -> None:
    """A pretrained model elsewhere, or bytes in memory, are no checkpoint of the run."""
    content = io.BytesIO(file.read_bytes())
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    assert heard(elsewhere, lambda: torch.load(file, weights_only=False))[1] == []
    assert heard(tmp_path, lambda: torch.load(content, weights_only=False))[1] == []


def test_what_is_saved_is_counted(tmp_path: Path) -> None:
    """So that a log that is written anew is not taken for a checkpoint."""
    assert heard(tmp_path, lambda: torch.save(1, tmp_path / "b.pt"))[0] == 1


@pytest.mark.parametrize("forced", ["1", "true"])
def test_the_environment_may_force_safety(file: Path, monkeypatch, forced: str) -> None:
    """As torch itself reads it."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", forced)
    assert heard(file.parent, lambda: torch.load(file))[1] == []


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch 2.4, which is what is looked at
def test_the_default_is_that_of_this_torch(file: Path) -> None:
    """From 2.6 on nothing is executed unless it is asked for."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert bool(heard(file.parent, lambda: torch.load(file))[1]) == (version < (2, 6))
