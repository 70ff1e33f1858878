"""
What the snapshots of the four reference trainings catch, and what they do not object to.

The smallest change of rate, weight decay, seed and data order that is caught, every mistake and
refactoring of `fixtures/edits.py`, and repeats with other thread counts, instruction sets and load,
of which none may be objected to: `python -m benchmarks.curves`.
"""

import os

# Read when torch is imported: threads that wait must not spin, or load would be all there is.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from random import Random
from time import process_time

from benchmarks.report import conditions, row
from fixtures.edits import (
    AUDIO,
    MISTAKES,
    MODALITIES,
    REFACTORINGS,
    TEACHER,
    TEXT,
    TRAININGS,
    Edit,
    findings,
)
from trainguard.curves.curve import Curve
from trainguard.curves.tolerance import departs

REPEATS = 52
THREADS = (1, 2, 4)
SEEDS = "    torch.manual_seed(seed)\n"
CHANGE_PLACES = "    {0}[[0, 1]] = {0}[[1, 0]]\n"
# What each training calls its rate and its weight decay, and what they are.
RATES = {
    AUDIO: ("lr={}, weight", "2e-3"),
    TEXT: ("peak={}, floor", "3e-3"),
    MODALITIES: ("learning_rate={}, seed", "3e-3"),
    TEACHER: ("lr={}, weight", "1e-3"),
}
DECAYS = {
    AUDIO: ("weight_decay={})", "0.01"),
    TEXT: ('"weight_decay": {}}}, {{"params": others', "0.1"),
    MODALITIES: ("weight_decay={})", "1e-5"),
    TEACHER: ("weight_decay={})", "0.05"),
}
SWAPS = {
    AUDIO: (("    loader = ", f"{CHANGE_PLACES.format('shards[0].tensors[0]')}    loader = "),),
    TEXT: (("for number in range(10)]", "for number in (*range(8), 9, 8)]"),),
    MODALITIES: (("    raw = ", f"{CHANGE_PLACES.format('causes')}    raw = "),),
    TEACHER: (
        ("    return DataLoader", f"{CHANGE_PLACES.format('volumes')}    return DataLoader"),
    ),
}


def smallest(training: str, place: tuple[str, str], largest: int = -1) -> str:
    """Return the smallest change of a number, by powers of ten, down to which all are caught."""
    text, value = place
    caught = "none"
    for power in range(-largest, 9):
        changed = repr(float(value) * (1 + 10.0**-power))
        if not findings(training, ((text.format(value), text.format(changed)),)):
            break
        caught = f"{10.0**-power:.0e} of it"
    return caught


def caught(training: str, edit: Edit) -> str:
    """Say whether an edit is caught."""
    return "caught" if findings(training, edit) else "MISSED"


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy while the block lasts."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def repeats() -> Iterator[tuple[str, int, int]]:
    """Yield the unedited trainings again and again: the training, its threads, processes beside."""
    random = Random(0)
    for training in islice(cycle(TRAININGS), REPEATS):
        yield training, random.choice(THREADS), random.choice((0, 2))


def repeated(training: str, threads: int, processes: int) -> int:
    """Return how often the snapshots object to an unedited training, threads and load aside."""
    edit = ((SEEDS, f"    torch.set_num_threads({threads})\n{SEEDS}"),)
    with load(processes):
        return len(findings(training, edit))


def elsewhere(capability: str) -> int:
    """Return how often they object to what another instruction set computes."""
    child = "from fixtures.edits import *; print(sum(len(findings(t)) for t in TRAININGS))"
    run = subprocess.run(
        [sys.executable, "-c", child],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(run.stdout)


def milliseconds(points: int = 10_000) -> float:
    """Return the CPU time of reading a snapshot of so many points and comparing it."""
    random = Random(0)
    values = tuple(2 + 0.999**step + 0.01 * random.random() for step in range(points))
    drift = tuple(1e-7 * (1 + step) for step in range(points))
    curve = Curve("loss", tuple(range(points)), (values,), drift, points)
    text = curve.to_text()
    times = []
    for _ in range(10):
        began = process_time()
        assert departs(Curve.from_text(text), curve) is None
        times.append(process_time() - began)
    return 1e3 * min(times)


def main() -> None:
    """Print all figures."""
    print(conditions())
    row(
        "snapshot of 10,000 points read and compared, ms of CPU (under 50)", f"{milliseconds():.1f}"
    )
    for training in TRAININGS:
        name = training.removeprefix("guard_loop_")
        row(f"{name}: smallest change of the rate caught", smallest(training, RATES[training]))
        row(
            f"{name}: smallest change of the weight decay caught",
            smallest(training, DECAYS[training], 4),
        )
        row(f"{name}: the next seed", caught(training, MISTAKES["another seed"][training]))
        row(f"{name}: two samples or shards that change places", caught(training, SWAPS[training]))
    mistakes = [findings(t, edit) for of in MISTAKES.values() for t, edit in of.items()]
    row("mistakes caught", f"{sum(map(bool, mistakes))} of {len(mistakes)}")
    refactored = [findings(t, edit) for of in REFACTORINGS.values() for t, edit in of.items()]
    row("refactorings objected to (0)", f"{sum(map(bool, refactored))} of {len(refactored)}")
    again = [bool(repeated(*repeat)) for repeat in repeats()]
    row("repeats with 1, 2, 4 threads and load objected to (0)", f"{sum(again)} of {len(again)}")
    for capability in ("avx2", "default"):
        row(f"on the instruction set {capability} objected to (0)", f"{elsewhere(capability)} of 8")


if __name__ == "__main__":
    main()
