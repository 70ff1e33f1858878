"""Scripts that start other processes: only the first one reports."""

import sys

import pytest

RULE = " trainguard ".center(100, "=")
SET = "from torch.utils.data import DataLoader, TensorDataset"
WORKERS = """\
    loader = DataLoader(
        TensorDataset(features, targets), 16, num_workers=2, multiprocessing_context={how!r}
    )
    for inputs, outputs in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), outputs).backward()
        optimizer.step()
    print("trained")
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers(folder, how) -> None:
    """The workers of a loader, forked or spawned, run as under python and report nothing."""
    after = "if __name__ == '__main__':\n" + WORKERS.format(how=how)
    folder.trains(imports=SET, steps="10 * (__name__ == '__main__')", after=after)
    done = folder.process("--json", "out.json", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(RULE) == 1
    assert done.stdout.startswith("trained\n")
    assert folder.document()["trace"]["steps"] == 14


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("pass", 0, ""),
        ("sys.exit(5)", 5, ""),
        ("sys.exit('child says')", 1, "child says\n"),
        ("raise LookupError('in the child')", 1, "LookupError: in the child\n"),
    ],
)
def test_a_forked_child(folder, end, code, error) -> None:
    """A child that runs on to the end of the script leaves with its own code, and silently."""
    after = (
        "import os\nchild = os.fork()\nif not child:\n    print('child', flush=True)\n"
        f"    {end}\nelse:\n    status = os.waitpid(child, 0)[1]\n"
        "    print('parent', os.waitstatus_to_exitcode(status))"
    )
    folder.trains(after=after)
    done = folder.process("train.py")
    assert done.returncode == 0
    assert done.stderr.endswith(error)
    assert "trainguard" not in done.stderr
    assert done.stderr == folder.python("train.py").stderr
    assert done.stdout.startswith(f"child\nparent {code}\n\n{RULE}")
    assert done.stdout.count(RULE) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_finishes_no_trace(folder) -> None:
    """To make the trace takes calls of torch, which may hang in a child: only the parent does."""
    after = (
        "import os\nimport trainguard.observe.loop.recorder as home\n"
        "own = home.Recorder._write\n"
        "def write(*args):\n    print('made in', os.getpid() == parent, flush=True)\n"
        "    own(*args)\n"
        "home.Recorder._write = write\nparent = os.getpid()\n"
        "if child := os.fork():\n    os.waitpid(child, 0)\n"
    )
    folder.trains(after=after)
    done = folder.process("train.py")
    assert done.returncode == 0
    assert done.stdout.startswith(f"made in True\n\n{RULE}")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_that_trains(folder, how) -> None:
    """A process that the script starts to train in is recorded and judged in its place."""
    train = folder.training(before="def main():", steps=5, zero="")
    head, loop = train.replace("\nfor step", "\n    for step").split("    for step", 1)
    loop = "    for step" + loop.rstrip().replace("\n    ", "\n        ")
    call = (
        "\n\ndef report():\n    print('no training', flush=True)\n\n\n"
        "if __name__ == '__main__':\n    import multiprocessing\n"
        f"    context = multiprocessing.get_context({how!r})\n"
        "    children = [context.Process(target=each) for each in (report, main)]\n"
        "    for child in children:\n        child.start()\n        child.join()\n"
        "    sys.exit(children[1].exitcode)\n"
    )
    folder.write("train.py", head + loop + call)
    done = folder.process("--json", "out.json", "train.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("no training\n")
    assert folder.found("out.json") == ["gradients_start_empty"]


SPAWNING = """\
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def work(rank, file):
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * (1 + RATE * rank))
    inputs = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        net(torch.randn(8, 4, generator=inputs)).pow(2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    if rank == FAILS:
        raise LookupError("no more")


if __name__ == "__main__":
    START
"""
CALL = "mp.spawn(work, (os.path.abspath('meeting'),), nprocs=2)"


@pytest.mark.parametrize(("rate", "fails", "code"), [(0, -1, 0), (1, -1, 1), (0, 1, 3)])
def test_processes_that_torch_spawns(folder, rate, fails, code) -> None:
    """They are judged together and in one report; one that fails has told its steps."""
    train = SPAWNING.replace("RATE", str(rate)).replace("FAILS", str(fails))
    folder.write("train.py", train.replace("START", CALL))
    done = folder.process("--json", "out.json", "train.py")
    assert done.returncode == code
    assert folder.found("out.json") == ["replicas_agree", "optimizers_agree"] * rate
    assert "all 2 processes were judged together" in done.stdout
    assert "train.py: 8 steps of SGD" in done.stdout
    assert ("LookupError: no more" in done.stderr) == (fails == 1)


FAILING = """\
    from trainguard.core.catalogue import catalogue
    [made] = [one for one in catalogue() if one.name == "loss_falls"]
    judged = []
    object.__setattr__(made, "judge", lambda trace: 1 / 0 if judged else judged.append(trace) or [])
"""


def test_a_judgement_that_fails_of_another_process(folder) -> None:
    """It is told as a fault, and not passed over: the first process alone was judged by it."""
    train = SPAWNING.replace("RATE", "0").replace("FAILS", "-1")
    folder.write("train.py", train.replace("    START", f"{FAILING}    {CALL}"))
    done = folder.process("train.py")
    assert done.returncode == 4
    assert "all 2 processes were judged together" in done.stdout
    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero")


LEADING = """\
file = os.path.abspath("meeting")
    other = mp.get_context("spawn").Process(target=work, args=(1, file))
    other.start()
    work(0, file)
    other.join()
"""


@pytest.mark.parametrize(("rate", "code"), [(0, 0), (1, 1)])
def test_a_process_that_trains_with_those_it_has_started(folder, rate, code) -> None:
    """It is the first of them, and they are judged together."""
    train = SPAWNING.replace("RATE", str(rate)).replace("FAILS", "-1")
    train = train.replace("    for _ in", "    dist.broadcast(torch.zeros(2), 0)\n    for _ in")
    folder.write("train.py", train.replace("START", LEADING.rstrip()))
    done = folder.process("--json", "out.json", "train.py")
    assert (done.returncode, done.stderr) == (code, "")
    assert folder.found("out.json") == ["replicas_agree", "optimizers_agree"] * rate
    assert "all 2 processes were judged together" in done.stdout


PROCESSES = """\
children = [mp.Process(target=work, args=(rank, os.path.abspath("meeting"))) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""
LAUNCHER = "mp.start_processes(work, (os.path.abspath('meeting'),), 2, start_method='fork')"


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("start", [PROCESSES, LAUNCHER])
def test_processes_that_are_forked(folder, start) -> None:
    """By multiprocessing, or as Accelerate's launcher for notebooks does it: judged together."""
    train = SPAWNING.replace("RATE", "1").replace("FAILS", "-1")
    folder.write("train.py", train.replace("START", start))
    done = folder.process("--json", "out.json", "train.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert folder.found("out.json") == ["replicas_agree", "optimizers_agree"]
    assert "all 2 processes were judged together" in done.stdout


def test_a_script_that_ends_at_once(folder) -> None:
    """`os._exit` ends the process with what was in it: there is no report, and its own code."""
    folder.trains(after="import os\nprint('gone', flush=True)\nos._exit(9)")
    done = folder.process("--json", "out.json", "train.py")
    assert (done.returncode, done.stdout) == (9, "gone\n")
    assert not (folder.path / "out.json").exists()
