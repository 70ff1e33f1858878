"""Processes that are run to their end, killed, or too slow; forked, and started anew."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.forks import ends
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.observe.checkpoint import process
from trainguard.observe.checkpoint.process import apart
from trainguard.observe.tools.devices import present


def write_and_print(path: Path) -> None:
    """Leave a trace of having been here, and of who was here."""
    path.write_text(str(os.getpid()))
    print("was here")


def raise_something() -> None:
    """Fail as a training may."""
    raise ValueError("no data")


def wait_with_a_child(path: Path) -> None:
    """Start a process that would outlive this one, and wait."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    path.write_text(str(child))
    time.sleep(60)


def test_another_process_works(tmp_path: Path) -> None:
    """It is not this one, and what it prints is kept."""
    ending = apart(partial(write_and_print, tmp_path / "here"), tmp_path, 60)
    assert (ending.code, ending.printed) == (0, "was here")
    assert int((tmp_path / "here").read_text()) != os.getpid()


def test_a_forked_process_trains_after_this_one_has(tmp_path: Path) -> None:
    """Threads of autograd in the parent are no obstacle, nor are those that share its work."""

    def train() -> None:
        """Make a step; a function inside of a function cannot be pickled."""
        model = torch.nn.Linear(64, 64)
        model(torch.randn(64, 64)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
        assert apart(train, tmp_path, 20).code == 0
    finally:
        torch.set_num_threads(before)


def test_what_is_raised_is_printed(tmp_path: Path) -> None:
    """The end of the output has the traceback."""
    ending = apart(raise_something, tmp_path, 60)
    assert ending.code == 1
    assert "ValueError: no data" in str(ending.cause)


def test_a_killed_process_has_its_signal_for_a_code(tmp_path: Path) -> None:
    """As subprocess tells it."""
    ending = apart(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path, 60)
    assert ending.code == -signal.SIGKILL


def test_a_slow_process_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Workers of loaders would go on for ever."""
    with pytest.raises(SubjectError, match="still running after 0.5 seconds"):
        apart(partial(wait_with_a_child, tmp_path / "child"), tmp_path, 0.5)
    child = int((tmp_path / "child").read_text())
    assert ends(child)


def test_a_new_interpreter_works_where_a_fork_would_not(tmp_path: Path, monkeypatch) -> None:
    """What is handed to it is found by its name, in whatever way pytest has imported it."""
    monkeypatch.setattr(process, "forks", lambda: False)
    ending = apart(partial(write_and_print, tmp_path / "here"), tmp_path, 120)
    assert (ending.code, ending.printed) == (0, "was here")


def test_a_new_interpreter_cannot_be_given_everything(tmp_path: Path, monkeypatch) -> None:
    """A function inside of a function has no name to be found by."""
    monkeypatch.setattr(process, "forks", lambda: False)
    with pytest.raises(Unjudged, match="Define it at module level"):
        apart(lambda: None, tmp_path, 60)


def test_linux_forks() -> None:
    """Unless there is an accelerator, whose threads a child would not have."""
    assert process.forks() == (sys.platform == "linux" and present() == ("cpu",))
