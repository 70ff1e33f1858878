"""What the page prints is what happens: the eight billion parameters, and the measures."""

import re
import subprocess
import sys
from pathlib import Path

from trainguard.subjects.units import parse_bytes

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


def test_eight_billion_parameters_are_reported_as_printed(folder) -> None:
    """The two files give the report, but for the numbers; the peak is the same within 1 %."""
    for name in ("text/large.py", "guard_large.py"):
        (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", PAGE, re.S)
        (folder.path / name).parent.mkdir(exist_ok=True)
        folder.write(name, f"# {name}\n{code}")
    (report,) = re.findall(r"```\n(large: one training step.*?)```", PAGE, re.S)

    done = folder.memory("guard_large.py")

    assert done.exit_code == 0
    assert worded(done.stdout).startswith(worded(report))
    assert abs(peak(done.stdout) / peak(report) - 1) < 0.01
    assert (ROOT / "docs" / "pictures" / "eight_billion.png").is_file()


def test_measures_save_what_is_printed() -> None:
    """The command of the table prints its rows, and every amount is the same within 1 %."""
    command = [sys.executable, "-m", "benchmarks.memory", "budget"]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=1800
    ).stdout
    told = re.findall(r"^\| (.+): predicted \| (.+?), (.+?), (.+) \|$", printed, re.M)
    on_a_gpu = r"(?:[^|]*\|){2}"  # which no prediction knows
    row = rf"^\| (.+?) \| ([\d.]+ GiB) \| ([^|]*?) ?\|{on_a_gpu} (fits|does not fit) \|$"
    rows = re.findall(row, PAGE, re.M)
    assert [(name, fits) for name, _, _, fits in told] == [
        (name, fits) for name, _, _, fits in rows
    ]
    for (name, *own), (_, *other) in zip(told, rows, strict=True):
        for predicted, written in zip(own[:2], other[:2], strict=True):
            assert abs(size(predicted) - size(written)) <= 0.01 * size(written), name


def size(text: str) -> int:
    """Return the bytes of an amount, none of words."""
    amount = re.search(r"[\d.]+ [KMG]iB", text)
    return parse_bytes("", amount[0]) if amount else 0


def worded(text: str) -> str:
    """Return a text without its numbers and spaces."""
    return " ".join(re.sub(r"[\d.,#]+", " ", text).split())


def peak(text: str) -> float:
    """Return the peak of a report, in GiB."""
    (amount,) = re.findall(r"peak +([\d.]+) GiB", text)
    return float(amount)
