"""How `trainguard run` ends: its exit code, and what it prints where."""

import signal
import sys
import time

import pytest

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


RULE = " trainguard ".center(100, "=")


def test_nothing_found(folder) -> None:
    """Exit 0, the script's output first and whole, then the account of the run."""
    folder.trains(after="print('as it is \u00e9', end='')")
    done = folder.process("train.py")
    assert (done.returncode, done.stderr) == (0, "")
    printed, report = done.stdout.split(f"\n{RULE}\n")
    assert printed == "as it is \u00e9"
    counts, head, *rows = report.strip().splitlines()
    assert counts.endswith(" passed")
    assert head.startswith("train.py: 30 steps of AdamW in ")
    words = [row.split()[0] for row in rows if not row.startswith("   ")]
    assert words == ["loss", "gradient", "rate", "memory", "unjudged"]


def test_something_found(folder) -> None:
    """Exit 1, with the whole finding: its place in the script, how to rerun, how to excuse."""
    folder.trains(zero="")
    done = folder.process("train.py", "--name", "x y")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["", RULE]
    assert lines[2].startswith(f"{LEFT_OVER}: `train.py` ")
    assert lines[3].endswith(" train.py:20")
    assert "  rerun     trainguard run train.py --name 'x y'" in lines
    assert f'  silence   --allow {LEFT_OVER}="<reason>"' in lines
    assert any(line.endswith(" passed, 1 broken") for line in lines)


def test_a_script_that_raises(folder) -> None:
    """Exit 3, with the traceback that Python shows, and the account of what was done till then."""
    after = "def fail():\n    raise LookupError('no such luck')\nfail()"
    folder.trains(after=after)
    plain = folder.python("train.py")
    done = folder.process("train.py")
    assert (done.returncode, plain.returncode) == (3, 1)
    assert done.stderr == plain.stderr
    assert "30 steps of AdamW" in done.stdout
    assert "(failed)" in done.stdout


def test_a_script_that_raises_during_a_step(folder) -> None:
    """No frame of ours stands in the traceback, though patches of ours were on the way."""
    inside = "net(torch.zeros(3, 3))"
    folder.trains(inside=inside)
    plain = folder.python("train.py")
    done = folder.process("train.py")
    assert done.returncode == 3
    assert done.stderr == plain.stderr
    assert "made no training step" not in done.stderr


def test_a_group_of_exceptions(folder) -> None:
    """Nested exceptions are shown as Python shows them."""
    after = (
        "try:\n    raise KeyError('a')\nexcept KeyError as error:\n"
        "    raise ExceptionGroup('many', [error, ValueError('b')]) from error"
    )
    folder.trains(after=after)
    assert folder.process("train.py").stderr == folder.python("train.py").stderr


def test_a_script_with_a_hook_for_exceptions(folder) -> None:
    """A hook of the script's own is told of its exception, without our frames."""
    before = (
        "import traceback\n"
        "def tell(kind, error, trace):\n"
        "    for seen in trace, error.__traceback__:\n"
        "        print([f.filename for f in traceback.extract_tb(seen)] == [__file__])\n"
        "sys.excepthook = tell"
    )
    folder.trains(before=before, after="raise LookupError")
    done = folder.process("train.py")
    assert done.returncode == 3
    assert done.stdout.startswith("True\nTrue\n")
    assert "LookupError" not in done.stderr


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 3, ""),
        ("sys.exit('no data')", 3, "no data\n"),
    ],
)
def test_a_script_that_exits(folder, call, code, error) -> None:
    """To exit with 0 is an end like any other; all else is a failure, told as Python tells it."""
    folder.trains(after=call)
    done = folder.process("train.py")
    assert (done.returncode, done.stderr) == (code, error)
    assert "30 steps of AdamW" in done.stdout


def test_findings_of_a_script_that_fails(folder) -> None:
    """The findings are printed all the same; the exit code is that of the failure."""
    folder.trains(zero="", after="raise LookupError")
    done = folder.process("train.py")
    assert done.returncode == 3
    assert f"{LEFT_OVER}: " in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
def test_a_thread_that_goes_on(folder) -> None:
    """Once the account is given, a process that a thread keeps going can be ended as ever."""
    after = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    folder.trains(steps=3, after=after)
    with folder.start("train.py", stdout=-1, text=True) as started:
        while not started.stdout.readline().startswith("  memory "):
            assert started.poll() is None
        time.sleep(0.2)
        began = time.monotonic()
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == -signal.SIGTERM
        assert time.monotonic() - began < 30


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of Unix")
def test_ctrl_c(folder) -> None:
    """What was recorded until Ctrl-C is reported; exit 130, as shells have it."""
    inside = "time.sleep(0.01)\nif step == 20:\n    print('here', flush=True)"
    folder.trains(imports="import time", steps="10**6", zero="", inside=inside)
    with folder.start("train.py", stdout=-1, stderr=-1, text=True) as started:
        assert started.stdout.readline() == "here\n"
        time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        printed, error = started.communicate(timeout=60)
    assert (started.returncode, error) == (130, "")
    assert f"{LEFT_OVER}: " in printed
    assert "(interrupted)" in printed
