"""Whole runs of two processes: the faults that no process sees by itself, and who is missing."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.forks import Started
from trainguard.command import torchrun
from trainguard.command.exit import INTERRUPTED
from trainguard.command.torchrun import told_command

TWO = '''\
"""Two replicas over gloo, with a fault by name."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

fault = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
if fault != "no wrapper":
    wrapped = DistributedDataParallel(net, broadcast_buffers=fault != "buffers")
model = net if fault in ("no wrapper", "bypass") else wrapped
sampler = None if fault == "same data" else DistributedSampler(data)
generator = torch.Generator().manual_seed(1)
loader = DataLoader(data, 16, sampler=sampler, shuffle=sampler is None, generator=generator)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2 * (1 + rank * (fault == "rate")))
for epoch in range(3):
    if sampler is not None and fault != "set_epoch":
        sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if fault == "skip" and rank == 1 and step == 3:
            continue
        if fault == f"killed {rank}" and epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in (f"leaves {rank}", "leaves 0 1" if rank < 2 else "") and epoch:
            sys.exit()
        if fault == f"quits {rank}" and epoch:
            os._exit(0)
        optimizer.step()
print("trained", flush=True)
dist.destroy_process_group()
if fault == "no wrapper":
    time.sleep(3 * rank)  # whoever is done first waits for the others
'''
FAULTS = {
    "bypass": {"replicas_agree", "gradients_agree"},
    "rate": {"replicas_agree", "optimizers_agree"},
    "skip": {"ranks_make_the_same_steps"},
    "same data": {"ranks_see_different_data"},
    "set_epoch": {"epochs_are_reshuffled"},
    "buffers": {"buffers_agree"},
    "no wrapper": {"processes_exchange_gradients"},
    "none": set(),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_no_process_sees_by_itself(folder, fault, tmp_path, monkeypatch) -> None:
    """Each is found by `--ranks 2`, with one report, and nothing is where there is no fault."""
    folder.write("train.py", TWO)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    done = folder.process("--ranks", "2", "--json", "out.json", "train.py", fault)
    assert set(folder.found()) == FAULTS[fault], done.stdout + done.stderr
    assert done.returncode == (fault not in ("none", "buffers"))
    assert done.stdout.count("= trainguard =") == 1
    assert "all 2 processes were judged together" in done.stdout
    assert "Traceback" not in done.stderr
    left = [file.name for file in (tmp_path / "temporary").iterdir()]
    assert not [name for name in left if name.startswith(("trainguard", "torchelastic"))]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_was_killed(folder, rank) -> None:
    """It is named, be it the first one, and the launcher fails without a traceback."""
    folder.write("train.py", TWO)
    done = folder.process("--ranks", "2", "train.py", f"killed {rank}", timeout=200)
    assert done.returncode == 3
    assert done.stdout.count("= trainguard =") == 1
    assert f"rank {rank}: it ended without a word" in done.stdout, done.stdout + done.stderr
    assert f"rank {rank} was ended by SIGKILL, before any other process failed." in done.stderr
    assert "ChildFailedError" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_leaves_early(folder, rank) -> None:
    """With exit code 0, as if it were done: the others fail, and the report says who made less."""
    folder.write("train.py", TWO)
    words = ("--ranks", "2", "--json", "out.json", "train.py", f"leaves {rank}")
    done = folder.process(*words, timeout=200)
    assert done.returncode == 3
    assert folder.found() == ["ranks_make_the_same_steps"], done.stdout + done.stderr
    assert "all 2 processes were judged together" in done.stdout
    assert f"rank {rank} had left, rank {1 - rank} waits at train.py:" in done.stdout
    assert done.stdout.count("= trainguard =") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_quits(folder, rank) -> None:
    """By os._exit(0), after which nobody can ask it: that is told, and the other is judged."""
    folder.write("train.py", TWO)
    done = folder.process("--ranks", "2", "train.py", f"quits {rank}", timeout=200)
    assert done.returncode == 3
    assert f"rank {rank}: it left by os._exit(0)" in done.stdout, done.stdout + done.stderr
    assert f"rank {1 - rank}: stood at train.py:" in done.stdout
    assert "1 of 2 processes were judged together" in done.stdout
    assert done.stdout.count("= trainguard =") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "each", "speaker"), [("rate", 1, 0), ("leaves 0", 1, 1), ("leaves 0 1", 2, 1)]
)
def test_processes_of_two_machines(folder, fault, each, speaker) -> None:
    """
    Each has an agent of torchrun; what they found goes through its store to the first one.

    Where others wait for the first, that leaves it to the first of these to tell of all.
    """
    folder.write("train.py", TWO)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = ("--master-addr=127.0.0.1", f"--master-port={free.getsockname()[1]}")
    several = ("--nnodes=2", f"--nproc-per-node={each}", *meeting)
    launcher = ("-m", "torch.distributed.run", *several)
    ours = ("-m", "trainguard", "run", "--json", "out.json", "train.py", fault)
    agents = [
        Started(
            [sys.executable, *launcher, f"--node-rank={number}", *ours],
            cwd=folder.path,
            env=folder.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    with agents[0], agents[1]:
        told = agents[speaker].communicate(timeout=240)[0]
        if speaker:
            agents[0].kill()  # it waits five minutes for the agent of one that has failed
        silent = agents[1 - speaker].communicate(timeout=240)[0]
    assert f"all {2 * each} processes were judged together" in told, told
    assert told.count("= trainguard =") == 1
    assert "= trainguard =" not in silent
    assert set(folder.found()) == FAULTS.get(fault, {"ranks_make_the_same_steps"})


@pytest.mark.slow
def test_an_interrupt_of_the_command_alone(folder, monkeypatch) -> None:
    """`kill -INT`, which unlike Ctrl-C tells no other process, ends the training too."""
    ready = folder.path / "ready"
    folder.write("train.py", f"import time\nopen({str(ready)!r}, 'w').close()\ntime.sleep(300)\n")
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(torchrun, "_GRACE", 0.5)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        """Interrupt this process once the training is there."""
        until = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    try:
        assert torchrun.start_ranks(2, ["run", "train.py"]) == INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert time.monotonic() - begun < 200


def test_the_command_that_makes_it_again(monkeypatch) -> None:
    """Of one process, of a launcher's, and of those that `--ranks` has started."""
    for name in ("RANK", "WORLD_SIZE", "TRAINGUARD_EXIT_CODES"):
        monkeypatch.delenv(name, raising=False)
    words = ["run", "train.py", "--ranks", "3"]
    assert told_command(words) == ["trainguard", *words]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    launcher = ["torchrun", "--nproc-per-node=2", "-m", "trainguard"]
    assert told_command(words) == [*launcher, *words]
    monkeypatch.setenv("TRAINGUARD_EXIT_CODES", "/tmp")
    assert told_command(words) == ["trainguard", "run", "--ranks=2", *words[1:]]


@pytest.mark.parametrize("count", [0, 1, -3])
def test_no_number_of_processes(folder, count) -> None:
    """One process is no group."""
    done = folder.run("--ranks", str(count), "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Give 2 or more." in done.stderr or "Give a whole number" in done.stderr
