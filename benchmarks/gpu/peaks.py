"""How near predicted memory comes to what the allocator of a device counts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import nn

from benchmarks import memory
from benchmarks.gpu.machine import Machine, Row
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.memory.training import train


def predictions(apart: int) -> None:
    """Print, as JSON, what is predicted for each configuration, or some; no device is in use."""
    found = {}
    for name, again, low, optimizer in _configurations()[::apart]:
        made = memory.training(name, again, low, optimizer, foreach=optimizer == "foreach")
        peak = predict_step(lambda made=made: made, "cuda").timeline.peak(0).total
        found[f"{name} {again} {low} {optimizer}"] = peak
    print(json.dumps(found))


def _configurations() -> list[tuple[str, bool, bool, str]]:
    """Return network, checkpointing, bfloat16 and optimizer of the 24 configurations."""
    return list(product(memory.NETWORKS, (False, True), (False, True), ("foreach", "fused")))


def peaks(machine: Machine) -> Iterator[Row]:
    """Compare the predicted peak of training steps with what the allocator counts."""
    apart = 8 if machine.simulated else 1
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu", "--predictions", str(apart)]
    told = subprocess.run(command, env=hidden, check=True, capture_output=True, text=True)
    predicted = json.loads(told.stdout.splitlines()[-1])
    for name, again, low, optimizer in _configurations()[::apart]:
        expected = predicted[f"{name} {again} {low} {optimizer}"]
        real, reserved = _real_peak(machine, name, again, low, optimizer)
        yield {
            "network": name,
            "checkpointing": again,
            "precision": "bfloat16" if low else "float32",
            "optimizer": f"AdamW {optimizer}",
            "predicted": expected,
            "allocated": real,
            "reserved": reserved,
            "percent off": round(100 * (expected / real - 1), 2),
            "reserved / allocated": round(reserved / real, 3),
        }


def _real_peak(
    machine: Machine, name: str, again: bool, low: bool, optimizer: str
) -> tuple[int, int]:
    """Return the most bytes that real steps had allocated, and reserved, on the device."""
    module = machine.module
    module.synchronize()
    module.empty_cache()
    module.reset_peak_memory_stats()
    before = module.memory_allocated(), module.memory_reserved()
    made = memory.training(name, again, False, optimizer, foreach=optimizer == "foreach")
    criterion = memory.NETWORKS[name][2]

    def loss(net: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss under the device's autocast."""
        with torch.autocast(machine.kind, torch.bfloat16, enabled=low):
            output = net(batch)
        with torch.device(machine.device):  # the classifier's targets are made there
            return criterion(output, batch), output

    there = replace(
        made,
        build=lambda: made.build().to(machine.device),
        feed=lambda: made.feed().to(machine.device),
        loss=loss,
    )
    train(there, memory.Unwatched())
    module.synchronize()
    return (
        module.max_memory_allocated() - before[0],
        module.max_memory_reserved() - before[1],
    )
