"""
What `trainguard compare` says of a training held against itself, on a machine that has load.

Five pairs of runs in turns, as the command makes them, each in a process of its own; while half of
the runs go on, chosen by chance, another process is busy: `python -m benchmarks.compare`.
"""

from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.curves import load
from benchmarks.report import conditions, row
from fixtures.compared import multimodal
from tests.forks import trainguard_run
from trainguard.command.compare.interval import margin
from trainguard.command.compare.pairing import Comparison, compare_sides
from trainguard.events.trace import Trace

COMPARISONS, PAIRS = 20, 5
SCRIPT = str(Path(str(multimodal.__file__)))
MARGINS = {
    "nothing": {"loss": "0%", "time": "0%"},
    "5 %": {"loss": "5%", "time": "5%", "memory": "5%"},
}


def recorded(folder: Path, seed: int, random: Random) -> Trace:
    """Return the trace of one run, with or without load."""
    file = folder / "trace"
    words = ("--no-probes", "--trace", str(file), SCRIPT, "--seed", str(seed), "--steps", "20")
    with load(random.choice((0, 1))):
        assert trainguard_run(folder, *words).code == 0
    return Trace.from_text(file.read_text(encoding="utf-8"))


def against_itself(folder: Path, random: Random) -> list[Comparison]:
    """Return what each margin says of one comparison of a training with itself."""
    sides: tuple[list[Trace], list[Trace]] = ([], [])
    for pair in range(PAIRS):
        for side in sides if pair % 2 == 0 else sides[::-1]:
            side.append(recorded(folder, pair, random))
    read = [{name: margin(name, text) for name, text in of.items()} for of in MARGINS.values()]
    return [compare_sides(*sides, of) for of in read]


def main() -> None:
    """Print how often what is the same was called worse, by the margin allowed."""
    random, counts = Random(0), Counter[tuple[str, str]]()
    with TemporaryDirectory() as folder:
        for _ in range(COMPARISONS):
            for allowed, found in zip(MARGINS, against_itself(Path(folder), random), strict=True):
                counts.update((allowed, change.measure) for change in found.worse)
    print(conditions())
    for allowed, of in MARGINS.items():
        for measure in of:
            figure = f"{counts[allowed, measure]} of {COMPARISONS}"
            row(f"{measure} called worse than itself, where {allowed} is allowed", figure)


if __name__ == "__main__":
    main()
