"""What recording a training costs on a device."""

import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.machine import Machine, Row, attempt
from benchmarks.recorder import Transformer
from trainguard.observe.loop import window
from trainguard.observe.loop.recorder import Recorder

LATER = 16  # steps after which a recording is in its later, thinner part here


def recorder(machine: Machine) -> Iterator[Row]:
    """Time steps of transformers with and without a recorder, and count what waits."""
    small, big = (320, 8, 512), (768, 12, 25_000)  # 10 and 124 million parameters
    sizes = [(32, 1, 64)] if machine.simulated else [small, big]
    for size, compiled, low in product(sizes, (False, True), (False, True)):
        if compiled and machine.simulated:
            continue
        row = {
            "width, layers, words": str(size),
            "compiled": compiled,
            "precision": "bfloat16, GradScaler" if low else "float32",
        }
        yield attempt(row, partial(_measure, machine, size, compiled, low))


def _measure(machine: Machine, size: tuple[int, int, int], compiled: bool, low: bool) -> Row:
    """Return what a step of a transformer takes, plain and recorded."""
    step, parameters = _transformer_step(machine, size, compiled, low)
    times = _plain_and_recorded(machine, step)
    return {
        "parameters": parameters,
        "plain ms": round(1e3 * times[0], 3),
        "recorded ms": round(1e3 * times[1], 3),
        "ratio": round(times[1] / times[0], 4),
        "waits of a plain step": _count_waits(machine, step, recorded=False),
        "waits of a recorded step": _count_waits(machine, step, recorded=True),
    }


def _transformer_step(
    machine: Machine, size: tuple[int, int, int], compiled: bool, low: bool
) -> tuple[Callable[[], None], int]:
    """Return a training step of a transformer, and how many parameters it has."""
    net = Transformer(*size).to(machine.device)
    call: Any = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler(machine.kind, enabled=low)
    words = torch.randint(0, size[2], (4, 65), device=machine.device)

    def step() -> None:
        """Make one step."""
        optimizer.zero_grad()
        with torch.autocast(machine.kind, torch.bfloat16, enabled=low):
            logits = call(words[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, size[2]), words[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step, sum(parameter.numel() for parameter in net.parameters())


def _plain_and_recorded(machine: Machine, step: Callable[[], None]) -> tuple[float, float]:
    """Return the median seconds of a step, plain and recorded, measured in turns."""
    count, turns = (4, 1) if machine.simulated else (40, 5)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    window.DENSE = LATER
    for recorded in [False, True] * turns:
        with Recorder("gpu", probe=False) if recorded else nullcontext():
            for _ in range(LATER + 1):
                step()
            seconds[recorded].append(machine.time(lambda: [step() for _ in range(count)]) / count)
    return statistics.median(seconds[False]), statistics.median(seconds[True])


def _count_waits(machine: Machine, step: Callable[[], None], *, recorded: bool) -> int | None:
    """Return how often the host waits for the device in one watched step."""
    window.DENSE = 256
    with Recorder("gpu", probe=False) if recorded else nullcontext():
        for _ in range(10):
            step()
        if machine.simulated:
            from tests.simulated.device import counts

            before = counts()
            step()
            return (counts() - before).waits
        if machine.kind != "cuda":
            return None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing" in str(warning.message) for warning in told)
