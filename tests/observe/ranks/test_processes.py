"""Processes of declared runs: who leaves early is found, and who fails or hangs is named."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainguard as tg
from tests.forks import ends
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.observe.ranks.observer import observe

STEPS, EARLY = 20, 12


def train(leaver: int = -1, way: str = "", wrap: bool = True) -> None:
    """Fit a layer; one process may leave after some steps, in some way."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net: Any = nn.Linear(8, 1)
    model = DistributedDataParallel(net) if wrap else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        if not wrap:
            dist.all_reduce(net.weight.grad)
        optimizer.step()
        if step == EARLY and dist.get_rank() == leaver:
            leave(way)
            return


def leave(way: str) -> None:
    """Leave, or fail."""
    if way == "raise":
        raise ValueError("too short")
    if way == "quit":
        os._exit(0)
    if way:
        sys.exit(int(way))


def found(run: Any) -> list[Any]:
    """Return what is found of the number of steps."""
    trace = observe(run, "cpu", "float32", Settings()).trace("run")
    return list(find_invariants("ranks.ranks_make_the_same_steps")[0].judge(trace))


@pytest.mark.parametrize(("leaver", "way"), [(0, ""), (1, ""), (1, "0")])
def test_a_process_that_leaves_early(leaver, way) -> None:
    """By a return or sys.exit(0): the other fails for it, and that is a finding."""
    (one,) = found(tg.Loop(train, arguments={"leaver": leaver, "way": way}, ranks=2))
    assert one.why.startswith(f"rank {leaver} had left, rank {1 - leaver} waits at test_processes")
    assert found(tg.Loop(train, ranks=2)) == []


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("raise", "rank 1 of 2 raised ValueError: too short"),
        ("quit", "rank 1 of 2 ended without a word"),
        ("3", "rank 1 of 2 raised SystemExit: 3"),
    ],
)
def test_a_process_that_fails(way, told) -> None:
    """It is named, though the other one fails for it too."""
    with pytest.raises(SubjectError, match=told):
        found(tg.Loop(train, arguments={"leaver": 1, "way": way}, ranks=2))


def test_a_process_that_is_lost_where_no_replicas_are() -> None:
    """No judgement would say so: the run could not be observed."""
    arguments = {"leaver": 1, "wrap": False}
    with pytest.raises(SubjectError, match="rank 0 of 2 raised RuntimeError: "):
        found(tg.Loop(train, arguments=arguments, ranks=2))


SCRIPT = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn

way = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(20):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    if rank == 0 and step == 12 and way == "leave":
        sys.exit()
    if rank == 0 and step == 12 and way == "fail":
        raise ValueError("too short")
    if way == "hang":
        open(f"process{rank}", "w").write(str(os.getpid()))
        dist.barrier() if rank else time.sleep(1000)
"""


@pytest.mark.slow
def test_scripts_of_two_processes(tmp_path: Path) -> None:
    """They are started by torchrun: one that is healthy, one that leaves early, one that fails."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert found(tg.Script(path, args=["end"], ranks=2)) == []
    (one,) = found(tg.Script(path, args=["leave"], ranks=2))
    assert one.why.startswith("rank 0 had left, rank 1 waits at train.py:")
    with pytest.raises(SubjectError, match="rank 0 ended with 3, before any other") as failed:
        found(tg.Script(path, args=["fail"], ranks=2))
    assert "ValueError: too short" in str(failed.value.__cause__)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they end by themselves at best")
def test_a_script_that_hangs(tmp_path: Path, monkeypatch) -> None:
    """Nothing of it is left: the launcher gives each process a session of its own."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SubjectError, match="was still running after 40 seconds"):
        found(tg.Script("train.py", args=["hang"], ranks=2, timeout=40.0))
    begun = time.monotonic()
    assert all(ends(int(Path(f"process{rank}").read_text())) for rank in range(2))
    assert time.monotonic() - begun < 20
