"""--timeout: a training that would go on for ever is stopped and judged."""

import sys
from time import monotonic

import pytest

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the alarm of Unix")
WAIT = "import time\ntry:\n    time.sleep(1000)\nfinally:\n    print('closed')"


def test_a_training_without_end(folder) -> None:
    """It is stopped between or in its steps, and what was seen is judged."""
    folder.trains(steps="10**9", zero="")
    began = monotonic()
    done = folder.process("--timeout", "5", "train.py")
    assert monotonic() - began < 30
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{LEFT_OVER}: " in done.stdout
    assert "(stopped)" in done.stdout


def test_a_script_that_sleeps(folder) -> None:
    """What it does outside of steps is interrupted too, and its `finally` blocks run."""
    folder.trains(after=WAIT)
    done = folder.process("--timeout", "5", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("closed\n")


def test_a_script_that_hangs_before_its_first_step(folder) -> None:
    """Nothing was seen then, so that there is nothing to judge."""
    folder.trains(before=WAIT)
    done = folder.process("--timeout", "4", "train.py")
    assert done.returncode == 2
    assert "`train.py` made no training step" in done.stderr


def test_a_training_inside_an_import(folder) -> None:
    """A module that trains while it is imported is stopped as well, after some patience."""
    folder.write("work.py", folder.training(steps="10**9"))
    folder.write("train.py", "import work\n")
    began = monotonic()
    done = folder.process("--timeout", "2", "train.py")
    assert monotonic() - began < 60
    assert (done.returncode, done.stderr) == (0, "")


def test_time_enough(folder) -> None:
    """A run that ends in time is a finished one, and no alarm goes off later."""
    folder.trains(after="import atexit, time\natexit.register(time.sleep, 3)")
    done = folder.process("--timeout", "60", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "(stopped)" not in done.stdout
