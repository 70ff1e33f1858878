"""How near predicted memory comes to what the allocator of a device counts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import nn

from benchmarks import memory
from benchmarks.gpu.machine import Machine, Row, attempt
from trainguard.observe.memory.device import count_since, counting
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.memory.training import Training, train


def predictions(apart: int) -> None:
    """Print, as JSON, what is predicted for each configuration, or some; no device is in use."""
    found = {}
    for name, again, low, optimizer in _configurations()[::apart]:
        made = memory.training(name, again, low, optimizer, foreach=optimizer == "foreach")
        peak = predict_step(lambda made=made: made, "cuda").timeline.peak(0).total
        found[f"{name} {again} {low} {optimizer}"] = peak
    for name in _measures(apart):
        with memory.measure(name, **_sizes(apart)) as step:
            found[name] = predict_step(step, "cuda").timeline.peak(0).total
    print(json.dumps(found))


def _configurations() -> list[tuple[str, bool, bool, str]]:
    """Return network, checkpointing, bfloat16 and optimizer of the 32 configurations."""
    return list(product(memory.NETWORKS, (False, True), (False, True), ("foreach", "fused")))


def _measures(apart: int) -> list[str]:
    """Return the measures that are taken with the audio model, or some."""
    return list(memory.MEASURES)[::apart]


def _sizes(apart: int) -> dict[str, int]:
    """Return the sizes of the audio model that are not its own."""
    return memory.SMALL if apart > 1 else {}


@cache
def _predicted(apart: int) -> dict[str, int]:
    """Return what is predicted, in a process that sees no device."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu", "--predictions", str(apart)]
    told = subprocess.run(command, env=hidden, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(told.stdout.splitlines()[-1])
    return found


def peaks(machine: Machine) -> Iterator[Row]:
    """Compare the predicted peak of training steps with what the allocator counts."""
    apart = _apart(machine)
    for name, again, low, optimizer in _configurations()[::apart]:
        chosen = name, again, low, optimizer
        expected = _predicted(apart)[" ".join(map(str, chosen))]
        row = {
            "network": name,
            "checkpointing": again,
            "precision": "bfloat16" if low else "float32",
            "optimizer": f"AdamW {optimizer}",
        }
        work = partial(_count, machine, partial(_training, machine, *chosen), expected)
        yield attempt(row, work)


def measures(machine: Machine) -> Iterator[Row]:
    """Take each measure with the audio model that needed 22 GiB, and count what it saves."""
    apart, first = _apart(machine), Row()
    for name in _measures(apart):
        with memory.measure(name, machine.device, **_sizes(apart)) as step:
            work = partial(_count, machine, step, _predicted(apart)[name])
            row = attempt({"measure": name}, work)
        first = first or row
        yield row | _saved(first, row)


def _saved(first: Row, row: Row) -> Row:
    """Return what a measure saves of what it was at first, as predicted and as counted."""
    if not first.keys() & row.keys() >= {"predicted", "allocated"}:
        return {}  # one of them did not fit
    columns = {"saved, predicted": "predicted", "saved": "allocated"}
    return {told: first[name] - row[name] for told, name in columns.items()}


def _apart(machine: Machine) -> int:
    """Return how many configurations there are for one that is tried; odd, to meet each of all."""
    return 7 if machine.simulated else 1


def _count(machine: Machine, step: Callable[[], Training], expected: int) -> Row:
    """Return what real steps take at the most on the device, beside what was predicted."""
    with counting(machine.module) as before:
        train(step(), memory.Unwatched())
        machine.module.synchronize()
        counted = count_since(before, machine.module)
    return {
        "predicted": expected,
        "allocated": counted.allocated,
        "reserved": counted.reserved,
        "percent off": round(100 * (expected / counted.allocated - 1), 2),
        "reserved / allocated": round(counted.reserved / counted.allocated, 3),
        "percent of the device free": round(100 * (1 - counted.reserved / counted.total), 2),
        "asked again": counted.retries,
    }


def _training(machine: Machine, name: str, again: bool, low: bool, optimizer: str) -> Training:
    """Return the steps of a configuration on the device."""
    made = memory.training(name, again, False, optimizer, foreach=optimizer == "foreach")
    criterion = memory.NETWORKS[name][2]

    def loss(net: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the loss under the device's autocast."""
        with torch.autocast(machine.kind, torch.bfloat16, enabled=low):
            output = net(batch)
        with torch.device(machine.device):  # the classifier's targets are made there
            return criterion(output, batch), output

    return replace(
        made,
        build=lambda: made.build().to(machine.device),
        feed=lambda: made.feed().to(machine.device),
        loss=loss,
    )
