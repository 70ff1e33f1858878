"""What needs processes of its own: ranks, and tests that are skipped elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import torch
from torch import nn

import trainguard as tg
from benchmarks.gpu.machine import Machine, Row, attempt
from tests.simulated.device import REAL


def ranks(machine: Machine) -> Iterator[Row]:
    """Reduce a tensor over nccl, with as many ranks as there are devices, two at most."""
    if machine.kind != "cuda" or not torch.distributed.is_nccl_available():
        yield {"ranks": 0, "outcome": "nccl is not here"}
        return
    for count in range(1, min(2, torch.cuda.device_count()) + 1):
        yield attempt({"ranks": count}, partial(_reduce, count))


def _reduce(count: int) -> Row:
    """Return what became of so many ranks."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    program = [sys.executable, *command, "-m", "benchmarks.gpu", "--rank"]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=240)
    return {"outcome": ended.stderr[-400:] if ended.returncode else "passed"}


def rank() -> None:
    """Be one of the ranks: train with gradients that are averaged over nccl, recorded."""
    own = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(own)
    torch.distributed.init_process_group("nccl", timeout=timedelta(seconds=120))
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1).to(f"cuda:{own}"), [own])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with tg.record("ranks"):
        for _ in range(20):
            optimizer.zero_grad()
            net(torch.randn(4, 8, device=f"cuda:{own}")).square().mean().backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


def tests(machine: Machine) -> Iterator[Row]:
    """Run the tests that need CUDA, and judge fixtures on it, one worker of xdist per device."""
    if machine.simulated:
        yield _test(["tests/simulated/test_device.py"], {})
        return
    workers = ["-n", str(machine.module.device_count())]
    yield _test(["tests/observe/memory/test_step.py", *workers], {})
    yield _test(["tests/simulated/test_fixtures.py", *workers], {REAL: machine.kind})


def _test(chosen: list[str], variables: dict[str, str]) -> Row:
    """Return what became of the tests of a file."""
    # A plugin that may be there warns of xdist, and a warning of ours fails.
    plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *chosen]
    env = {**os.environ, **variables}
    try:
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=480, env=env
        )
    except subprocess.TimeoutExpired as error:
        return {"tests": chosen[0], "outcome": f"not over after {error.timeout} s"}
    lines = ended.stdout.strip().splitlines()
    failed = [line.partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"tests": chosen[0], "outcome": lines[-1], "failed": " ".join(failed)[:2000]}
