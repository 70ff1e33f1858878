"""The progress line: on a terminal only, and never over what the script prints."""

import os
import re
import subprocess
import sys

import pytest

from tests.forks import read_terminal

if sys.platform == "win32":
    pytest.skip("needs the terminals of Unix", allow_module_level=True)

import pty

SLOW = "import time\nfor part in range(8):\n    time.sleep(0.25)\n"


def on_terminal(folder, *words: str, **environment: str) -> tuple[int, str]:
    """Run on a terminal of its own, and return the exit code and all that it was sent."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "trainguard", "run", *words]
    env = {**folder.environment(), "TERM": "xterm", **environment}
    process = subprocess.Popen(
        command, cwd=folder.path, env=env, stdin=inner, stdout=inner, stderr=inner, close_fds=True
    )
    os.close(inner)
    sent = read_terminal(outer, process)
    return process.wait(60), sent.decode()


def screen(sent: str) -> list[str]:
    """Return the lines that a terminal shows after it was sent something."""
    lines, column = [""], 0
    for word in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", sent):
        if word == "\n":
            lines.append("")
        elif word == "\r":
            column = 0
        elif word == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + word + lines[-1][column + len(word) :]
            column += len(word)
    return lines


def test_the_line(folder) -> None:
    """It counts the steps while they are made, and is gone once the run is over."""
    folder.trains(steps=8, inside="import time\ntime.sleep(0.25)")
    code, sent = on_terminal(folder, "--steps", "8", "train.py")
    assert code == 0
    assert re.search(r"\r\x1b\[Ktrainguard: step [2-7] of 8, \d+ s, [\d.]+ steps/s", sent)
    shown = screen(sent)
    assert shown[0] == ""
    assert " trainguard ==" in shown[1]
    assert not any("steps/s" in line for line in shown)


def test_what_the_script_prints_stays(folder) -> None:
    """Lines, half lines and bars of the script's own look as they would without us."""
    prints = (
        f"{SLOW}    print('line', part)\n"
        f"{SLOW}    print('.', end='', flush=True)\nprint()\n"
        f"{SLOW}    print(f'\\rbar {{part}}', end='', file=sys.stderr, flush=True)\n"
        "print(file=sys.stderr)\n"
    )
    folder.trains(steps=10, after=prints)
    code, sent = on_terminal(folder, "train.py")
    assert code == 0
    assert "steps/s" in sent
    shown = screen(sent)
    assert shown[:10] == [*(f"line {part}" for part in range(8)), "........", "bar 7"]
    assert shown[10] == ""
    assert " trainguard ==" in shown[11]


def test_a_fork_while_it_is_drawn(folder) -> None:
    """Children print on the same terminal and come to their end."""
    after = (
        "import os, time\nfor part in range(40):\n    child = os.fork()\n"
        "    if not child:\n        print('child', part)\n        sys.stdout.flush()\n"
        "        os._exit(0)\n    time.sleep(0.05)\n    os.waitpid(child, 0)\n"
    )
    folder.trains(steps=10, after=after)
    code, sent = on_terminal(folder, "train.py")
    assert code == 0
    assert sent.count("child") == 40


def test_a_terminal_that_can_do_nothing(folder) -> None:
    """On a terminal without a movable cursor there is no line."""
    folder.trains(steps=10, after=SLOW)
    code, sent = on_terminal(folder, "train.py", TERM="dumb")
    assert code == 0
    assert "\x1b" not in sent
    assert "steps/s" not in sent
