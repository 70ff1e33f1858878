"""Under torchrun each process runs `trainguard run`; the first one speaks for all."""

import os
import subprocess
import sys

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
DISTRIBUTED = """\
import torch.distributed as dist

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
print("rank", dist.get_rank(), flush=True)
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
    assert done.stdout.count("rank") == 2  # each process printed; their lines may be mixed
    assert done.stdout.count(" trainguard ==") == 1
    assert done.stdout.count(f"{LEFT_OVER}: ") == 1
    assert folder.found("out.json") == [LEFT_OVER]
    assert folder.found("out.json.rank1") == [LEFT_OVER]
    assert (folder.path / "trace.jsonl").is_file()
    assert (folder.path / "trace.jsonl.rank1").is_file()


def test_another_process_than_the_first(folder) -> None:
    """It prints nothing, and does not stop the first one; it does fail where its script fails."""
    folder.trains(zero="")
    second = {"RANK": "1", "WORLD_SIZE": "2"}
    command = ["-m", "trainguard", "run", "train.py"]
    done = folder.python(*command, env=second)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder.trains(zero="", after="raise LookupError")
    done = folder.python(*command, env=second)
    assert (done.returncode, done.stdout) == (3, "")


def test_a_rank_without_a_world(folder) -> None:
    """A variable that happens to be called RANK means nothing."""
    folder.trains(zero="")
    env = {**folder.environment(), "RANK": "3"}
    command = [sys.executable, "-m", "trainguard", "run", "train.py"]
    done = subprocess.run(command, cwd=folder.path, env=env, capture_output=True, check=False)
    assert done.returncode == 1
    assert LEFT_OVER.encode() in done.stdout
    assert os.listdir(folder.path) == ["train.py"]  # noqa: PTH208
