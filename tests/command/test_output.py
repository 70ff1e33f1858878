"""What a command says where nobody listens, where a disk is full, and where names are too long."""

import io
import os
import re
import sys

import pytest
from typer.testing import CliRunner

from tests.command.compare.runs import run, write
from trainguard.command import cli
from trainguard.command.exit import seconds as seconds_of
from trainguard.command.output import paint, say

FULL = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")


@FULL
def test_a_full_device() -> None:
    """What could not be written is told where there is room, and does not end Python later."""
    err = io.StringIO()
    with open("/dev/full", "w", encoding="ascii") as full:  # noqa: PTH123
        assert not say("report", full, err)
        full.flush()  # leads nowhere by now
    assert err.getvalue() == "The report could not be written: No space left on device.\n"


def test_a_reader_that_left() -> None:
    """It knows why: nothing is said."""
    err, (reading, writing) = io.StringIO(), os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="ascii") as pipe:
        assert not say("report", pipe, err)
    assert err.getvalue() == ""


def test_letters_that_a_stream_lacks() -> None:
    """They are written by their numbers."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert say("caf\u00e9", stream)
    assert stream.buffer.getvalue() == rb"caf\xe9" + os.linesep.encode()


@FULL
@pytest.mark.parametrize("words", [("list",), ("explain", "loss_falls")])
def test_what_is_asked_for_does_not_arrive(words, monkeypatch) -> None:
    """That is a failure, and no fault of ours."""
    with open("/dev/full", "w", encoding="utf-8") as full, monkeypatch.context() as patched:  # noqa: PTH123
        patched.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            cli.app(words)
    assert ended.value.code == 2


@pytest.fixture
def trace(tmp_path) -> str:
    """Return the path of a trace."""
    return write(tmp_path / "runs" / "a.jsonl", run())


def compare(*words: str):
    """Run `trainguard compare` in this process."""
    return CliRunner().invoke(cli.app, ["compare", *words])


@FULL
def test_a_comparison_whose_file_cannot_be_written(trace) -> None:
    """The report is printed all the same; the exit code tells."""
    done = compare(trace, trace, "--json", "/dev/full")
    assert (done.exit_code, "paired " in done.stdout) == (2, True)
    assert done.stderr == "/dev/full could not be written: No space left on device.\n"


def test_names_that_are_too_long(trace, tmp_path) -> None:
    """A side with many arguments is a command, and no file has such a name."""
    done = compare(f"train.py {'x ' * 200}", trace)
    assert done.exit_code == 2
    assert done.stderr.startswith("There is no script, loop, trace or log 'train.py'.")
    done = compare(trace, trace, "--json", str(tmp_path / ("x" * 256)))
    assert (done.exit_code, "cannot be written: File name too long" in done.stderr) == (2, True)
    assert compare(trace, trace, "--json", str(tmp_path / ("x" * 255))).exit_code == 0
    assert (tmp_path / ("x" * 255)).is_file()


@pytest.mark.parametrize("seconds", ["inf", "1e300"])
def test_time_without_end(trace, seconds) -> None:
    """A limit that is none is none."""
    assert compare(trace, trace, "--timeout", seconds).exit_code == 0
    assert seconds_of(float(seconds)) is None


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no such terminals")
def test_a_terminal_has_colours(monkeypatch) -> None:
    """They are added to the report, which is the same without them; a plain stream has none."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    report = (
        "loss_falls: `a` rises\n  at        step 1\n\n3 judged: 2 passed, 1 broken\nmy_run: 3 steps"
    )
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        painted = paint(report, terminal)
        monkeypatch.setenv("TERM", "dumb")
        assert paint(report, terminal) == report
    os.close(master)
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == report
    assert painted.startswith("\x1b[1;31mloss_falls\x1b[0m: ")
    assert "\x1b[32m2 passed\x1b[0m, \x1b[1;31m1 broken\x1b[0m\nmy_run: 3" in painted
    assert paint(report, io.StringIO()) == report
