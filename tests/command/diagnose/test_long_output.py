"""Output of gigabytes: memory that does not grow with it, and a line that says how far it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import read_terminal

if sys.platform == "win32":
    pytest.skip("needs the terminals of Unix", allow_module_level=True)

import pty

UNIT = 1024 if sys.platform == "darwin" else 1  # of the kernel's memory figures, in KiB
ROOM = 8 * 1024  # KiB by which memory may differ: what an allocator asks for at once


def diagnose_on_terminal(file: Path) -> tuple[int, int, str]:
    """Return the exit code, the most memory in KiB, and what the terminal was sent."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainguard", "diagnose", file.name],
        cwd=file.parent,
        env={**os.environ, "TERM": "xterm"},
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    sent = read_terminal(outer, process)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss // UNIT, sent.decode()


def test_memory_does_not_grow_with_a_log(tmp_path) -> None:
    """Four times the output takes the same memory, and the rows are counted while it is read."""
    used = []
    for rows in (100_000, 400_000):
        file = tmp_path / f"{rows}.log"
        with file.open("w") as opened:
            for n in range(rows):
                opened.write(f"step {n} | loss {0.4 + 2 * 0.9999**n:.5f} | lr 1.00e-03\n")
        code, memory, sent = diagnose_on_terminal(file)
        assert code == 0, sent
        used.append(memory)
    assert used[1] - used[0] < ROOM
    shares = re.findall(
        r"\r\x1b\[Ktrainguard: \[#*\.*\] (\d+)% of 400000.log, [\d,]+ rows, \d+ s", sent
    )
    assert shares
    assert shares == sorted(shares, key=int)
