"""A fault of trainguard itself is told as one: it is no finding, and no failure of the script."""

import pytest

# The one way to make our code fail on purpose: replace a part of it by one that does.
BREAK = "import importlib\nhome = importlib.import_module('trainguard.{module}')\n{break_it}\n"
FAULTS = {
    "while recording": (
        "observe.loop.recorder",
        "home.Recorder.step_begins = lambda self: None",  # it is called with a window
    ),
    "while judging": ("command.run", "home.judge_run = None"),
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
