"""
What an installed trainguard costs a pytest run that does not use it.

Whole pytest processes on one empty test, with the plugin and without it (`-p no:trainguard`), in
turns: A B A B. Run `python -m benchmarks.startup`.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.report import conditions, row

TURNS = 20


def seconds(folder: Path, *options: str) -> float:
    """Return how long one pytest process takes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    started = perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return perf_counter() - started


def main() -> None:
    """Print both medians and their paired ratio, beside the ratio of no plugin with itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    assert True\n")
        without = ("-p", "no:trainguard")
        turns = [
            (seconds(folder), seconds(folder, *without), seconds(folder, *without))
            for _ in range(TURNS)
        ]
    ours, bare, again = (statistics.median(column) for column in zip(*turns, strict=True))
    print(conditions())
    row("with trainguard, seconds", f"{ours:.3f}")
    row("without, seconds", f"{bare:.3f}")
    row("with / without", f"{statistics.median(a / b for a, b, _ in turns):.3f}")
    row("without / without: the noise", f"{statistics.median(c / b for _, b, c in turns):.3f}")
    row("without, second time, seconds", f"{again:.3f}")


if __name__ == "__main__":
    main()
