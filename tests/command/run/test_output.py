"""What a script prints is its own: binary, much, or nothing any more."""

import hashlib
import os
import subprocess

import pytest

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


def test_binary(folder) -> None:
    """Bytes that are no text pass untouched."""
    folder.trains(after="sys.stdout.buffer.write(bytes(range(256)))")
    done = folder.process("train.py", text=False)
    assert done.returncode == 0
    assert done.stdout.startswith(bytes(range(256)) + b"\n====")


def test_much(folder) -> None:
    """50 MB through a pipe that is read as it is written arrive whole, in time."""
    after = (
        "for i in range(500_000):\n    print(i, 'x' * 92)\n"
        "sys.stdout.buffer.write(b'y' * 1_000_000)"
    )
    folder.trains(after=after)
    expected = hashlib.sha256()
    for i in range(500_000):
        expected.update(f"{i} {'x' * 92}\n".encode())
    expected.update(b"y" * 1_000_000)
    with folder.start("train.py", stdout=subprocess.PIPE) as process:
        printed = process.stdout.read()
        assert process.wait(60) == 0
    script, rule, _ = printed.partition(b"\n==")
    assert rule
    assert len(script) > 49_000_000
    assert hashlib.sha256(script).digest() == expected.digest()


def test_a_script_that_closes_stdout(folder) -> None:
    """The report comes out all the same."""
    folder.trains(zero="", after="print('last', flush=True)\nsys.stdout.close()")
    done = folder.process("train.py")
    assert done.returncode == 1
    assert done.stdout.startswith("last\n\n==")
    assert f"{LEFT_OVER}: " in done.stdout


def test_a_script_that_replaces_stdout(folder) -> None:
    """What it prints goes where it says, and the report to where stdout led before."""
    before = "sys.stdout = open('log.txt', 'w')\nprint('to the log')"
    folder.trains(before=before)
    done = folder.process("train.py")
    assert done.returncode == 0
    assert done.stdout.startswith("\n==")
    assert (folder.path / "log.txt").read_text(encoding="utf-8") == "to the log\n"


def test_nobody_listens(folder) -> None:
    """Where stdout is closed from the start, the exit code and the files still tell."""
    folder.trains(zero="")
    done = folder.process("--json", "out.json", "train.py", preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert done.stderr == "The report could not be written: the stream is closed.\n"
    assert folder.document()["findings"]


@pytest.mark.parametrize(("words", "code"), [((), 2), (("--json", "out.json"), 0)])
def test_a_pass_that_nobody_can_read(folder, words, code) -> None:
    """A healthy run without an account is no pass; a file is an account."""
    folder.trains()
    done = folder.process(*words, "train.py", preexec_fn=lambda: os.close(1))
    assert done.returncode == code
    assert done.stderr == "The report could not be written: the stream is closed.\n"


def test_a_reader_that_leaves(folder) -> None:
    """A pipe that is closed before the report does not change the verdict."""
    folder.trains(zero="", after="print('first', flush=True)\nsys.stdin.read()")
    with folder.start("train.py", stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        process.stdin.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""


def test_all_is_plain(folder) -> None:
    """Nothing but the script's own bytes and lines of text comes out: no colours, no cursor."""
    folder.trains(steps=10, after="import time\ntime.sleep(1.2)")
    done = folder.process("train.py")
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert done.stderr == ""
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
