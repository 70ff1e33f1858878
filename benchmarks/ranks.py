"""
Thousands of processes judged together: seconds and memory, by digests of a size that is real.

4,096 processes of 10,000 steps each, of which a recorder keeps 865, tell the first one what a trace
of theirs tells: it is read, joined and judged by the whole family, once in health, and once with a
rate, a seed and a step of a few processes that are not those of the others:
`python -m benchmarks.ranks`.
"""

import resource
from collections.abc import Iterator
from dataclasses import replace
from time import process_time
from typing import Any

from benchmarks.report import conditions, row
from trainguard.core.catalogue import catalogue
from trainguard.events.joined import join
from trainguard.events.ranks import RankCourse, RankRun
from trainguard.events.trace import Trace

RANKS = 4096
STEPS = 10_000
DENSE, STRIDE = 256, 16  # of a recorder: all steps, then every so many
HASHED = 512  # steps whose inputs it takes fingerprints of
PARAMETERS = 64
SECONDS, MEMORY = 60.0, 1024.0  # allowed; MiB


def watched() -> tuple[int, ...]:
    """Return the steps that a recorder keeps of so many."""
    return (*range(DENSE), *range(DENSE, STEPS, STRIDE))


def looks() -> tuple[int, ...]:
    """Return the steps after which it sums up the parameters."""
    return (-1, *(i for i in watched() if i < 8 or not i & (i - 1) or i % 256 == 0))


def digest(rank: int) -> Trace[Any]:
    """Return what one healthy process tells."""
    steps = watched()
    prints = ((rank << 20 | step,) if step < HASHED else () for step in steps)
    course = RankCourse(
        rank=rank,
        optimizer="AdamW",
        source="train.py:12",
        made=STEPS,
        steps=steps,
        rates=tuple((1e-3 / (1 + step), 1e-3) for step in steps),
        norms=tuple(1 / (1 + step) for step in steps),
        updates=tuple(0.01 / (1 + step) for step in steps),
        scales=(1.0,) * len(steps),
        fingerprints=tuple(prints),
        waits=tuple(1e-3 + 1e-7 * (rank + step) for step in steps),
        seconds=tuple(0.1 + 1e-7 * (rank + step) for step in steps),
        names=tuple(f"GPT.blocks.{i}.weight" for i in range(PARAMETERS)),
        replicas=f"0:{RANKS}:1",
        exchanged=len(steps) - 1,
        looks=looks(),
        sums=tuple(tuple(look * i for i in range(PARAMETERS)) for look in looks()),
    )
    return Trace("train.py", (RankRun(rank=rank, world=RANKS, steps=STEPS), course))


def texts(sick: bool) -> Iterator[str]:
    """Yield what each process leaves in the store, made one at a time."""
    pattern = digest(0)
    run, course = pattern.events
    for rank in range(RANKS):
        own = digest(rank).events[1] if rank < 2 else course
        steps = watched()
        own = replace(
            own,
            rank=rank,
            fingerprints=tuple((rank << 20 | i,) if i < HASHED else () for i in steps),
            waits=tuple(1e-3 + 1e-7 * (rank + i) for i in steps),
            seconds=tuple(0.1 + 1e-7 * (rank + i) for i in steps),
        )
        if sick and rank == 7:
            own = replace(own, rates=tuple((1e-4, 1e-3) for _ in steps))
        if sick and rank in (100, 101):
            own = replace(own, fingerprints=course.fingerprints)
        yield replace(pattern, events=(replace(run, rank=rank), own)).to_text()


def measure(sick: bool) -> tuple[float, float, int]:
    """Return the seconds to read and to judge, and how many invariants found something."""
    reading = judging = 0.0

    def read() -> Iterator[Trace[Any]]:
        """Yield the digests, and count the time that reading takes alone."""
        nonlocal reading
        for text in texts(sick):
            began = process_time()
            trace: Trace[Any] = Trace.from_text(text)
            reading += process_time() - began
            yield trace

    joined = join(read())
    began = process_time()
    found = sum(bool(list(made.judge(joined))) for made in catalogue("ranks"))
    judging = process_time() - began
    return reading, judging, found


def main() -> None:
    """Print the table."""
    print(conditions())
    for sick in (False, True):
        reading, judging, found = measure(sick)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        of = f"{RANKS:,} ranks of {STEPS:,} steps, {'three of them odd' if sick else 'healthy'}"
        told = f"read in {reading:.1f} s, judged in {judging:.1f} s, at most {memory:.0f} MiB"
        row(of, f"{told}; found by {found}")
        assert reading + judging < SECONDS
        assert memory < MEMORY


if __name__ == "__main__":
    main()
