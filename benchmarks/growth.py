"""
Measure what following a training for growth costs, and how small a leak is found.

Run `python benchmarks/growth.py`. CPU time, the same training of ten steps with and without being
followed, in turns; and, for leaks of ever fewer bytes per step, what is found within ten steps.
"""

import gc
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.core.finding import Finding
from trainguard.events.trace import Trace
from trainguard.invariants.memory.growth import memory_does_not_grow
from trainguard.observe.memory.leak_watch import CHECKS, LeakWatch

ROUNDS = 7
WIDTH = 256
SIZES = (4096, 2048, 1024, 512)


def train(steps: int, keep: Callable[[], object] = lambda: None) -> None:
    """Train a transformer layer for so many steps, and keep something of each."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(steps):
        x = torch.randn(8, 64, WIDTH)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(keep())


def followed(steps: int, keep: Callable[[], object] = lambda: None) -> list[Finding]:
    """Train under a follower, and return what is found."""
    follower = LeakWatch()
    with follower.following():
        train(steps, keep)
    return list(memory_does_not_grow(Trace("train", tuple(follower.told))))


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time that some work takes."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    steps = CHECKS[0]
    train(2)
    followed(steps)
    pairs = [
        (seconds(lambda: train(steps)), seconds(lambda: followed(steps))) for _ in range(ROUNDS)
    ]
    plain, seen = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"ten steps: {plain:.2f} s of CPU, followed {seen:.2f} s, median ratio {ratio:.2f}")
    for size in SIZES:
        tensors = followed(steps, lambda size=size: torch.zeros(size // 4))
        arrays = followed(steps, lambda size=size: np.zeros(size // 4, dtype=np.float32))
        print(f"{size:>5} B per step: tensors {told(tensors)}, arrays {told(arrays)}")


def told(findings: list[Finding]) -> str:
    """Return what was found in one word."""
    return findings[0].rank.value if findings else "nothing"


if __name__ == "__main__":
    main()
