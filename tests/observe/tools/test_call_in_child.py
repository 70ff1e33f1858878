"""Functions in a forked child."""

import os
import time

import pytest

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.child_process import call_in_child
from trainguard.observe.tools.isolation import deadline


def test_the_result_comes_back_and_nothing_else() -> None:
    """What the function returns is returned; what it changes is gone with the child."""
    kept: list[int] = []

    def keep() -> int:
        """Change something that the parent sees too."""
        kept.append(os.getpid())
        return kept[0]

    assert call_in_child(keep) != os.getpid()
    assert kept == []


def test_what_it_raises_is_a_fault_of_the_subject() -> None:
    """The exception is told in one sentence."""
    with pytest.raises(SubjectError, match="it raised ZeroDivisionError"):
        call_in_child(lambda: 1 // 0)


def test_a_child_that_dies_is_told_of() -> None:
    """A child that ends before it can answer is a fault of what it ran."""
    with pytest.raises(SubjectError, match="ended the process"):
        call_in_child(lambda: os._exit(3))


def test_a_child_that_hangs_is_ended(monkeypatch) -> None:
    """When the time is over the child is killed, and not left behind."""
    forked, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(fork()) or forked[-1])
    started = time.monotonic()
    with pytest.raises(SubjectError), deadline(0.3):
        call_in_child(lambda: time.sleep(60))
    assert time.monotonic() - started < 30
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)
