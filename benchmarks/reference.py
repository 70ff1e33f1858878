"""
How long `pytest --trainguard` takes on all healthy reference subjects, alone and with `-n 2`.

Whole processes in turns, in one run: `python -m benchmarks.reference`.
"""

import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.report import conditions, row

TURNS = 2
ROOT = Path(__file__).parents[1]
NO_TRAININGS = "--trainguard-select=loss.*,schedule.*"  # for which a minute was meant


def seconds(*options: str) -> float:
    """Return how long one run over the reference subjects takes."""
    command = [sys.executable, "-m", "pytest", "-q", "--trainguard", *options, "fixtures/healthy"]
    started = perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return perf_counter() - started


def main() -> None:
    """Print both medians and their paired ratio."""
    turns = [(seconds(), seconds("-n", "2")) for _ in range(TURNS)]
    alone, two = (statistics.median(column) for column in zip(*turns, strict=True))
    print(conditions())
    row("losses and schedules, one process, seconds (under 60)", f"{seconds(NO_TRAININGS):.1f}")
    row("all families, one process, seconds", f"{alone:.1f}")
    row("with -n 2, seconds", f"{two:.1f}")
    row("with -n 2 / one process (below 1)", f"{statistics.median(b / a for a, b in turns):.2f}")


if __name__ == "__main__":
    main()
