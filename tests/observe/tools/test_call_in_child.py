"""Functions in a forked child, and commands: what becomes of them, and of us."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.child_process import call_in_child, fork_child, run_to_end
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


def _run_command(folder: Path) -> None:
    """Wait for a command that would go on for long, and for what it has started."""
    body = (
        "import os, pathlib, time\nos.fork()\n"
        "pathlib.Path(f'{os.getpid()}.pid').touch()\ntime.sleep(60)"
    )
    run_to_end([sys.executable, "-ISc", body], folder, folder / "errors", 60)


def _run_fork(folder: Path) -> None:
    """Wait for a forked child that would go on for long."""
    body = lambda: (folder / f"{os.getpid()}.pid").touch() or time.sleep(60)  # noqa: E731
    os.waitpid(fork_child(body), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and the signals of Linux")
@pytest.mark.parametrize(("wait", "children"), [(_run_command, 2), (_run_fork, 1)])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_us(wait, children, end, tmp_path) -> None:
    """However we are ended, what we have started ends too."""

    def work() -> None:
        """Be us, with the signals of a terminal."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        wait(tmp_path)

    us = fork_child(work)
    _until(lambda: len(list(tmp_path.glob("*.pid"))) == children)
    os.kill(us, end)
    os.waitpid(us, 0)
    started = [int(file.stem) for file in tmp_path.glob("*.pid")]
    _until(lambda: not any(_is_alive(process) for process in started))


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
@pytest.mark.parametrize(
    ("body", "code"),
    [("raise SystemExit(7)", 7), ("import os\nos.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_a_command_ends_as_it_ends(body, code, tmp_path) -> None:
    """What stands between us and a command changes nothing of its exit code."""
    command = [sys.executable, "-ISc", body]
    assert run_to_end(command, tmp_path, tmp_path / "errors", 60) == code


def _until(done, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    """Say whether a process is there and has not ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
