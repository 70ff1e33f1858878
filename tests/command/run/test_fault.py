"""A fault of trainguard itself is told as one: it is no finding, and no failure of the script."""

import pytest

# The one way to make our code fail on purpose: replace a part of it by one that does.
BREAK = "import importlib\nhome = importlib.import_module('trainguard.{module}')\n{break_it}\n"
FAULTS = {
    "while recording": (
        "observe.loop.recorder",
        "home.Recorder.step_begins = lambda self: None",  # it is called with a window
    ),
    "while judging": ("command.run", "home.judge_threads = None"),
}


@pytest.mark.parametrize("when", FAULTS)
def test_our_own_fault(folder, when) -> None:
    """Exit 4, with our traceback whole."""
    module, break_it = FAULTS[when]
    folder.trains(before=BREAK.format(module=module, break_it=break_it))
    done = folder.run("train.py")
    assert done.returncode == 4
    assert done.stderr.startswith("trainguard itself failed: please report it with this traceback")
    assert 'trainguard/command/run.py", line' in done.stderr
    assert done.stderr.rstrip().rpartition("\n")[2].startswith("TypeError: ")


def test_a_judgement_that_fails(folder) -> None:
    """What all others find is reported first; then exit 4, with its traceback."""
    break_it = (
        "[made] = [m for m in home.catalogue() if m.name == 'loss_falls']\n"
        "object.__setattr__(made, 'judge', lambda trace: 1 / 0)"
    )
    folder.trains(before=BREAK.format(module="core.catalogue", break_it=break_it))
    done = folder.run("train.py")
    assert done.returncode == 4
    assert " invariants judged: " in done.stdout
    assert "train.py: " in done.stdout
    told = done.stderr.strip()
    assert told.startswith("the invariant loss_falls, defined in ")  # by this script, as it seems
    assert told.endswith("ZeroDivisionError: division by zero")


THEIRS = {
    "del sys.stdout": (0, ""),
    "sys.stdout = open('/dev/full', 'w', 1)\nprint('x')": (3, "OSError: [Errno 28]"),
    "sys.stdout.reconfigure(encoding='ascii')\nprint('\u00e9')": (3, "UnicodeEncodeError: 'ascii'"),
    "import numpy\nnumpy.random.seed(-1)": (3, "ValueError: Seed must be between"),
    "sys.excepthook = lambda *told: 1 / 0\nraise LookupError('mine')": (3, "LookupError: mine"),
}


@pytest.mark.parametrize("after", THEIRS)
def test_a_fault_of_the_script(folder, after) -> None:
    """What C raises in a function of ours, which stands in the way, is the script's own fault."""
    folder.trains(after=after)
    done = folder.run("train.py")
    code, error = THEIRS[after]
    assert (done.returncode, error in done.stderr) == (code, True)
    assert "trainguard" not in done.stderr
    assert " trainguard ==" in done.stdout
