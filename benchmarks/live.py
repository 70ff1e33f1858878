"""
What it costs that a recording is judged while it goes on: at most 0.5 % of the run.

Whole recorded runs of short steps, with and without live judging in turns, on one thread, in one
process: `python -m benchmarks.live`. A longer step only makes the share smaller.
"""

import statistics
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks.recorder import small
from benchmarks.report import conditions, row
from trainguard.core.settings import Settings
from trainguard.judging.live import LiveJudge
from trainguard.observe.loop.live_looks import LiveLooks
from trainguard.observe.loop.recorder import Recorder
from trainguard.subjects.loop import Script

TURNS = 2
STEPS = 20_000  # a minute: of a shorter run the grace of live_looks.py is more than the share


class TimedLooks(LiveLooks):
    """Live looks whose every second is counted, those of deciding that none is due among them."""

    seconds = 0.0

    def after_step(self, recorder: Recorder) -> None:
        """Look where it is time to, and count what that took."""
        began = perf_counter()
        super().after_step(recorder)
        self.seconds += perf_counter() - began


def run(step: Callable[[], None], count: int, live: bool) -> tuple[float, float, int]:
    """Return a run's seconds of the processor, the share that live judging had, and its looks."""
    judge, looks = LiveJudge(Script("benchmark"), Settings()), list[int]()

    def look(steps: int, trace: Any) -> str:
        """Judge what was recorded so far."""
        looks.append(steps)
        judge.judge(steps, trace)
        return ""

    recorder = Recorder("benchmark", probe=False)
    timed = TimedLooks(look)
    began, used = perf_counter(), process_time()
    with recorder:
        if live:
            recorder.live = timed
        for _ in range(count):
            step()
    return process_time() - used, timed.seconds / (perf_counter() - began), len(looks)


def main() -> None:
    """Print what live judging adds to a run, and the noise of such a figure."""
    torch.set_num_threads(1)
    step = small()
    run(step, 64, True)
    trios = [[run(step, STEPS, live) for live in (False, True, False)] for _ in range(TURNS)]
    taken = [[used for used, _, _ in trio] for trio in trios]
    shares, looks = [trio[1][1] for trio in trios], trios[0][1][2]
    print(f"{conditions()}, one thread\n\n| figure | measured |\n|---|---|")
    row("a recorded run, seconds of the processor", f"{statistics.median(t[0] for t in taken):.1f}")
    row(f"looks in its {STEPS:,} steps", str(looks))
    row("live judging, share of the run (at most 0.5 %)", f"{100 * max(shares):.3f} %")
    ratio = statistics.median(2 * b / (a + c) for a, b, c in taken)
    row("judged live / only recorded", f"{ratio:.4f}")
    noise = statistics.median(c / a for a, _, c in taken)
    row("only recorded / only recorded, the noise", f"{noise:.4f}")


if __name__ == "__main__":
    main()
