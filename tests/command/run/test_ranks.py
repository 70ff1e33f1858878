"""Under torchrun each process runs `trainguard run`; the first one speaks for all."""

import os
import socket
import subprocess
import sys
import tempfile
from functools import partial

import pytest

from tests.forks import Started, command
from trainguard.command import ranks
from trainguard.events.trace import Trace
from trainguard.judging.baseline import open_baseline

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
DISTRIBUTED = """\
import torch.distributed as dist

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
torch.manual_seed(dist.get_rank())
print("here is", dist.get_rank(), flush=True)
"""


def test_two_processes(folder) -> None:
    """One report, and a file of each process; the exit code is that of the findings."""
    script = folder.training(
        before=DISTRIBUTED, zero="", steps=12, after="dist.destroy_process_group()"
    )
    folder.write("train.py", script)
    command = (
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "trainguard", "run", "--json", "out.json", "--trace", "trace.jsonl", "train.py"),
    )
    done = folder.python(*command, timeout=180)
    assert done.returncode != 0
    assert done.stdout.count("here is") == 2  # each process printed; their lines may be mixed
    assert done.stdout.count(" trainguard ==") == 1
    assert done.stdout.count(f"{LEFT_OVER}: ") == 1
    assert "all 2 processes were judged together" in done.stdout
    assert folder.found("out.json") == [LEFT_OVER]
    assert folder.found("out.json.rank1") == [LEFT_OVER]
    assert (folder.path / "trace.jsonl").is_file()
    assert (folder.path / "trace.jsonl.rank1").is_file()


def test_another_process_than_the_first(folder) -> None:
    """It is told of where it ends last; it does fail where its script fails."""
    folder.trains(zero="")
    second = {"RANK": "1", "WORLD_SIZE": "2"}
    command = ["-m", "trainguard", "run", "train.py"]
    done = folder.python(*command, env=second)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"rank 1:\n{LEFT_OVER}: ")
    assert "rank 1 of 2: rank 0 was never seen on this machine, so" in done.stderr
    folder.trains(zero="", after="raise LookupError")
    done = folder.python(*command, env=second)
    assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs the locks of Unix")
def test_the_last_one_has_the_findings_of_all(monkeypatch, tmp_path) -> None:
    """Whoever ends earlier stops nobody, and one that was killed is not waited for."""
    told = {"WORLD_SIZE": "3", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": str(tmp_path)}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    processes = {0: 1, 1: os.getpid(), 2: os.getppid()}  # all of them are there

    def as_rank(number: int, call, *args):
        """Be one of the processes."""
        monkeypatch.setenv("RANK", str(number))
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: processes[number])
            return call(*args)

    for number in processes:
        as_rank(number, ranks.enter)
    assert as_rank(1, ranks.leave, {"a": "A", "b": "B"}) == {}
    assert as_rank(0, ranks.leave, {"a": "A0"}) == {}
    everything = as_rank(2, ranks.leave, {})
    assert everything == {0: {"a": "A0"}, 1: {"a": "A", "b": "B"}, 2: {}}
    assert ranks.render_others(everything) == "rank 1:\nB"
    assert ranks.miss_the_first(everything) == ""
    assert ranks.miss_the_first({1: {}}).startswith("rank 1 of 3: rank 0 was never seen")
    assert not list(tmp_path.iterdir())

    processes[2] = 2**22 + 1  # there is none such
    as_rank(2, ranks.enter)
    as_rank(0, ranks.enter)
    assert as_rank(0, ranks.leave, {"a": "A0"}) == {0: {"a": "A0"}}

    processes[0] = 2**22 + 2  # the first one died
    processes[2] = os.getppid()
    for number in (1, 0, 2):
        as_rank(number, ranks.enter)
    assert [as_rank(number, ranks.speaks) for number in processes] == [True, True, False]

    processes[0] = os.getppid()  # the first one is done, and the second waits for it
    as_rank(0, ranks.enter)
    as_rank(1, ranks.stand, "train.py:12")
    monkeypatch.setattr(ranks, "_HURRY", 0.0)
    assert as_rank(0, partial(ranks.gather, failed=False, hands_over=True)).handed == 1
    as_rank(0, ranks.hand_over, 1)
    as_rank(0, ranks.leave, {})
    assert [as_rank(number, ranks.speaks) for number in processes] == [False, True, False]

    for number in processes:  # anew, and the second one has left early, too
        as_rank(number, ranks.leave, {})
    processes[0] = 1
    for number in processes:
        as_rank(number, ranks.enter)
    as_rank(1, ranks.tell, {}, Trace("train.py", ()), open_baseline(None, False))
    as_rank(1, ranks.leave, {})
    as_rank(2, ranks.stand, "train.py:12")
    assert as_rank(0, partial(ranks.gather, failed=False, hands_over=True)).handed == 2
    as_rank(0, ranks.hand_over, 2)
    as_rank(0, ranks.leave, {})
    assert [as_rank(number, ranks.speaks) for number in processes] == [False, False, True]


@pytest.mark.skipif(sys.platform == "win32", reason="needs the locks of Unix")
def test_runs_that_were_killed_leave_nothing(monkeypatch, tmp_path) -> None:
    """The next run takes away what they left, and nothing of a run that goes on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")

    def begin(run: str, process: int) -> None:
        """Let a process begin, and leave its findings."""
        monkeypatch.setenv("MASTER_PORT", run)
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: process)
            ranks.enter()
        ranks._write_private(ranks._meeting(0), "{}")

    begin("1", os.getppid())  # goes on
    begin("2", 2**22 + 1)  # there is none such
    (tmp_path / "trainguard-of-somebody").write_text("{}")
    before = sorted(tmp_path.iterdir())
    begin("3", os.getpid())
    monkeypatch.setenv("MASTER_PORT", "2")
    gone = {file for file in before if file.name.startswith(ranks._meeting().name)}
    assert len(gone) == 2
    assert set(before) - set(tmp_path.iterdir()) == gone


SLURM = """\
import os

os.environ["RANK"] = os.environ["SLURM_PROCID"]
os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * (1 + rank))
torch.manual_seed(rank)
for step in range(20):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1), dist.ReduceOp.MAX if rank and step == 12 else dist.ReduceOp.SUM)
dist.destroy_process_group()
"""


def test_processes_of_srun(folder) -> None:
    """Their script makes torch's variables of Slurm's: they are judged together all the same."""
    folder.write("train.py", SLURM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    slurm |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [sys.executable, "-m", "trainguard", "run", "--json", "out.json", "train.py"]
    own = [folder.environment({**slurm, "SLURM_PROCID": str(number)}) for number in range(2)]
    tasks = [
        Started(words, cwd=folder.path, env=env, stdout=subprocess.PIPE, text=True) for env in own
    ]
    with tasks[0], tasks[1]:
        printed = [task.communicate(timeout=180)[0] for task in tasks]
    assert "all 2 processes were judged together" in printed[0]
    assert "= trainguard =" not in printed[1]
    assert 1 in [task.returncode for task in tasks]
    assert folder.found() == ["replicas_agree", "optimizers_agree", "collectives_match"]


TAKEN = """\
import os, socket
import torch.distributed as dist

with socket.socket() as other:
    other.bind(("127.0.0.1", 0))
    other.listen()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(other.getsockname()[1]))
    dist.init_process_group("gloo")
"""


def test_a_port_in_use(folder) -> None:
    """What torch says of it ends with one sentence and the way out; no file is left."""
    folder.write("train.py", TAKEN)
    (folder.path / "temporary").mkdir()
    words = ["-m", "trainguard", "run", "train.py"]
    told = {"RANK": "0", "WORLD_SIZE": "2", "TMPDIR": str(folder.path / "temporary")}
    done = folder.python(*words, env=told)
    assert (done.returncode, done.stdout) == (3, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Port ")
    assert "`torchrun --standalone` takes a free one" in last
    left = [file.name for file in (folder.path / "temporary").iterdir()]
    assert [name for name in left if name.startswith("trainguard")] == []


def test_a_store_that_is_not_there(folder) -> None:
    """Processes of several machines without a launcher's: each judges itself, and says the way."""
    several = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    done = folder.python("-m", "trainguard", "run", "train.py", env=several)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2 processes were judged together" in done.stdout
    told = " ".join(done.stdout.split())
    assert "rank 1: it could not be asked: ConnectionError. Give --trace, and `train" in told


KILLED = """\
import os, signal
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.Generator().manual_seed(rank)
for step in range(20):
    loss = net(torch.randn(16, 8, generator=inputs)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 10 and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_first_machine_that_is_gone(folder) -> None:
    """Its launcher's store goes with it: the process on the other one is judged, and says so."""
    folder.write("train.py", KILLED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launcher += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    words = ["-m", "trainguard", "run", "train.py"]
    each = [[*launcher, "--node-rank", str(number), *words] for number in range(2)]
    env = folder.environment({})
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    machines = [Started(every, cwd=folder.path, env=env, **pipe) for every in each]
    with machines[0], machines[1]:
        _, (printed, errors) = (machine.communicate(timeout=180) for machine in machines)
    assert "trainguard itself failed" not in errors
    told = " ".join(printed.split())
    assert "1 of 2 processes were judged together" in told
    assert "rank 0: it could not be asked: Dist" in told


def test_a_rank_without_a_world(folder) -> None:
    """A variable that happens to be called RANK means nothing."""
    folder.trains(zero="")
    env = {**folder.environment(), "RANK": "3"}
    command = [sys.executable, "-m", "trainguard", "run", "train.py"]
    done = subprocess.run(
        command, cwd=folder.path, env=env, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert LEFT_OVER.encode() in done.stdout
    assert os.listdir(folder.path) == ["train.py"]  # noqa: PTH208


HANGING = """\
import sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.Generator().manual_seed(rank)
for step in range(40):
    loss = net(torch.randn(16, 8, generator=inputs)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20 and sys.argv[1] == "one" and rank == 0:
        dist.barrier()
    if step == 20 and sys.argv[1] == "both":
        dist.all_reduce(torch.ones(16)) if rank == 0 else dist.broadcast(torch.ones(16), 1)
        dist.barrier()
        time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("who", "found", "stood"),
    [
        ("one", [], ["rank 0: stood at train.py:17", "rank 1: stood at train.py:14"]),
        ("both", ["collectives_match"], ["rank 0: stood at train.py:", "rank 1: stood at train."]),
    ],
)
def test_processes_that_wait_for_each_other(folder, who, found, stood) -> None:
    """Nothing interrupts them, and yet they are judged, and where each one stood is told."""
    folder.write("train.py", HANGING)
    ours = ("run", "--ranks", "2", "--timeout", "12", "--json", "out.json", "train.py", who)
    done = folder.python("-m", "trainguard", *ours, timeout=120)
    assert done.returncode == (1 if found else 3)
    assert folder.found("out.json") == found
    assert [words for words in stood if words not in done.stdout] == []
    assert "all 2 processes were judged together" in done.stdout


def test_processes_of_no_script(tmp_path) -> None:
    """None is made, so that one sentence says what is missing."""
    done = command(tmp_path, "run", "--ranks", "2", "absent.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("There is no script 'absent.py' in ")
    assert done.stderr.count("\n") == 1
