"""
Thousands of processes judged together: seconds and memory, by digests of a size that is real.

Up to 4,096 processes of 10,000 steps each, of which a recorder keeps 865, leave what they leave for
the first one, which takes it in and judges it as at the end of a run: in health, with a rate and
the inputs of three of them that are not those of the others, and where no two of them agree on
anything, in a loss and a gradient of each one's own.

And what is added to a recorded step of 2 processes, a transformer of 10 M parameters under
DistributedDataParallel that also adds up its loss: the share of a step's time that the watchers of
ranks take, and the thread that sees whether a process stands still; and to a run of 4 processes at
its end. `python -m benchmarks.ranks`.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

from benchmarks.report import conditions, row
from trainguard.command.ranks import Others
from trainguard.core.catalogue import catalogue
from trainguard.events.joined import join
from trainguard.events.ranks import RankCourse, RankRun, write_sums
from trainguard.events.trace import Trace
from trainguard.judging.baseline import open_baseline

WORLDS = (256, 1024, 4096)
STEPS = 10_000
DENSE, STRIDE = 256, 16  # of a recorder: all steps, then every so many
HASHED = 512  # steps whose inputs it takes fingerprints of
PARAMETERS = 64
STATES = ("healthy", "three of them odd", "each another")
SECONDS, MEMORY = 60.0, 1024.0  # allowed; MiB
STEP_SHARE, END = 0.02, 2.0  # of a step; seconds
MADE = 48  # steps of the transformer, the first of which are all looked at

WATCHED = (*range(DENSE), *range(DENSE, STEPS, STRIDE))
LOOKS = (-1, *(i for i in WATCHED if i < 8 or not i & (i - 1) or i % 256 == 0))


def course(world: int) -> RankCourse:
    """Return the steps of one healthy process."""
    return RankCourse(
        rank=0,
        optimizer="AdamW",
        source="train.py:12",
        made=STEPS,
        steps=WATCHED,
        rates=tuple((1e-3 / (1 + step), 1e-3) for step in WATCHED),
        norms=tuple(1 / (1 + step) for step in WATCHED),
        updates=tuple(0.01 / (1 + step) for step in WATCHED),
        scales=(1.0,) * len(WATCHED),
        names=tuple(f"GPT.blocks.{i}.weight" for i in range(PARAMETERS)),
        replicas=f"0:{world}:1",
        exchanged=len(WATCHED) - 1,
        looks=LOOKS,
        sums=write_looks(0),
    )


def write_looks(rank: int) -> tuple[str, ...]:
    """Return the sums of all looks, which are those of one process."""
    return tuple(write_sums((look * i << 40) + rank for i in range(PARAMETERS)) for look in LOOKS)


def make_own(pattern: RankCourse, rank: int, state: str) -> RankCourse:
    """Return the steps of one process, which is sick or not."""
    odd = state == STATES[1]
    first = 100 if odd and rank == 101 else rank
    own = replace(
        pattern,
        rank=rank,
        fingerprints=tuple((first << 40 | i,) if i < HASHED else () for i in WATCHED),
        waiting=0.01 + 1e-7 * rank,
    )
    if odd and rank == 7:
        own = replace(own, rates=tuple((1e-4, 1e-3) for _ in WATCHED))
    if state == STATES[2]:
        sums = write_looks(rank)
        norms = tuple(norm * (1 + rank) for norm in own.norms)
        own = replace(own, sums=sums, norms=norms)
    return own


def texts(world: int, state: str) -> Iterator[tuple[int, str]]:
    """Yield what each process leaves for the first one, made one at a time."""
    pattern, known = course(world), open_baseline(None, False).seen_text()
    for rank in range(world):
        run = RankRun(rank=rank, world=world, steps=STEPS)
        digest = Trace("train.py", (run, make_own(pattern, rank, state)))
        yield rank, json.dumps({"found": {}, "digest": digest.to_text(), "known": known})


def measure(world: int, state: str) -> tuple[float, float, float, int]:
    """Return the seconds to take in and to judge, the peak in MiB, and how many found something."""
    others, taking = Others(), 0.0
    for rank, text in texts(world, state):
        began = process_time()
        others.take(rank, text)
        taking += process_time() - began
    began = process_time()
    joined = join(others.digests.values())
    found = sum(bool(list(made.judge(joined))) for made in catalogue("ranks"))
    judging = process_time() - began
    assert len(others.digests) == world
    return taking, judging, getrusage(RUSAGE_SELF).ru_maxrss / 1024, found


def time_watchers(_subject: Any) -> bytes:
    """
    Train in one of two processes; return the shares of its time that go to watching ranks.

    Those of the watchers, and of the thread that sees whether this process stands still.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    from benchmarks.recorder import Transformer
    from trainguard.observe.loop.recorder import Recorder
    from trainguard.observe.loop.watch.runs.collectives import Collectives
    from trainguard.observe.loop.watch.runs.replicas import Replicas

    spent = [0.0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that adds its time to what was spent."""

        def wrapper(*args: Any) -> Any:
            """Call it."""
            began = process_time()
            try:
                return method(*args)
            finally:
                spent[0] += process_time() - began

        return wrapper

    methods = {
        Replicas: ("before_step", "after_step"),
        Collectives: ("before_step", "_take", "_end"),
    }
    for kind, names in methods.items():
        for name in names:
            setattr(kind, name, timed(getattr(kind, name)))
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, 512, (4, 65))
    with Recorder("benchmark", probe=False), watch_timed() as thread:
        for made in range(MADE + 1):
            if made == 1:
                began, spent[0] = process_time(), 0.0  # the first step makes what stays
                looked = thread()
            optimizer.zero_grad()
            logits = model(words[:, :-1])
            loss = cross_entropy(logits.reshape(-1, 512), words[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
        took, looked = process_time() - began, thread() - looked
    dist.barrier()
    return json.dumps((spent[0] / took, looked / took)).encode()


@contextmanager
def watch_timed() -> Iterator[Callable[[], float]]:
    """Watch whether this process stands still, as the command does; yield what that has taken."""
    from trainguard.observe.loop.waiting import watch_waiting

    with watch_waiting(None, print, str):
        watch = next(each for each in threading.enumerate() if each.name == "trainguard")
        clock = time.pthread_getcpuclockid(watch.ident or 0)
        yield lambda: time.clock_gettime(clock)


def print_costs() -> None:
    """Print what is added to a step of two processes, and to the end of four."""
    from trainguard.observe.ranks.processes import call_in_ranks
    from trainguard.subjects.loop import Loop

    two = Loop(main, ranks=2)  # says on which devices, and for how long
    told = [json.loads(each) for each in call_in_ranks(time_watchers, two, (), 2)]
    share, looks = map(max, zip(*told, strict=True))
    row("watchers of ranks, of a step of 2 processes", f"{100 * share:.2f} %")
    row("the thread that sees a process stand still", f"{100 * looks:.2f} %")
    began = process_time()
    measure(4, STATES[0])
    end = process_time() - began
    row("4 processes of 10,000 steps: written, taken in, judged", f"{end:.2f} s")
    assert share + looks < STEP_SHARE
    assert end < END


def main() -> None:
    """Print the table; each row is measured in a process of its own, which begins with little."""
    print(conditions())
    print("| what | cost |")
    print("|---|---|")
    print_costs()
    print()
    print("| processes | state | taken in, s | judged, s | peak, MiB | invariants that found |")
    print("|---|---|---|---|---|---|")
    for state in STATES:
        for world in WORLDS:
            with get_context("spawn").Pool(1) as pool:
                taking, judging, memory, found = pool.apply(measure, (world, state))
            told = f"{taking:.1f} | {judging:.1f} | {memory:.0f} | {found}"
            row(f"{world:,} | {state}", told)
            sys.stdout.flush()
            assert taking + judging < SECONDS
            assert memory < MEMORY


if __name__ == "__main__":
    main()
