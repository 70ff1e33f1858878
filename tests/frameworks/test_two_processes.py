"""The frameworks' trainings in two processes: judged together, silent, and bit for bit the same."""

import json
from pathlib import Path

import pytest

from tests.frameworks.test_frameworks import SCRIPTS, run, skip_without

SEED = "import torch\n\ntorch.manual_seed(0)\n"
LAST = """
{0}import hashlib, os, sys

{0}every = b"".join(p.detach().numpy().tobytes() for p in {1}.parameters())
{0}rank = os.environ.get("RANK", os.environ["LOCAL_RANK"])
{0}sys.stdout.write(f"rank {{rank}} ends with {{hashlib.sha256(every).hexdigest()}}\\n")
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# Its --cpu starts one process, and more only by mpirun.
ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
    *("--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"),
)
OURS = ("-m", "trainguard", "run")
TWO = ('accelerator="cpu",', 'accelerator="cpu", devices=2, strategy="ddp",')
# By script: packages, seed, model, indent, what is replaced, launcher, steps.
TRAININGS = {
    "trainer.py": (("transformers", "accelerate"), SEED, "model", "", None, TORCHRUN, 12),
    "accelerated.py": (("accelerate",), SEED, "model", "", None, ACCELERATE, 16),
    "lightning_module.py": (
        *(("lightning",), "import lightning\n\nlightning.seed_everything(0)\n"),
        *("trainer.lightning_module", "    ", TWO, TORCHRUN, 16),
    ),
}


def write(folder: Path, script: str) -> None:
    """Write a training that is seeded, and ends with a sum of the parameters of each process."""
    _, seed, model, indent, replaced, *_ = TRAININGS[script]
    text = (SCRIPTS / script).read_text(encoding="utf-8")
    head, _, body = text.partition("\n")
    body = body.replace(*replaced) if replaced else body
    (folder / script).write_text(f"{head}\n{seed}{body}{LAST.format(indent, model)}", "utf-8")


def said(printed: str) -> list[str]:
    """Return what the script has printed, but for seconds, in an order of its own."""
    # A line of one process may stand behind one of the other, whose end is written later.
    own = printed.partition("= trainguard =")[0].replace("rank ", "\nrank ").splitlines()
    return sorted(line for line in own if "runtime" not in line and line.strip("= \n"))


@pytest.mark.slow
@pytest.mark.parametrize("script", TRAININGS)
def test_two_processes_of_a_framework(script: str, tmp_path: Path) -> None:
    """Both are judged, nothing is found, and they print and end with what they do alone."""
    packages, *_, launcher, steps = TRAININGS[script]
    skip_without(*packages)
    write(tmp_path, script)
    alone = run(tmp_path, *launcher, script)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    done = run(tmp_path, *launcher, *OURS, "--strict", "--json", "out.json", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 2 processes were judged together" in done.stdout
    assert said(done.stdout) == said(alone.stdout)
    assert alone.stdout.count(" ends with ") == 2
    for name in ("out.json", "out.json.rank1"):
        told = json.loads((tmp_path / name).read_text())
        assert (told["findings"], told["trace"]["steps"]) == ([], steps)


@pytest.mark.slow
def test_processes_that_lightning_starts(tmp_path: Path) -> None:
    """It starts the second one as a script of its own: the first one is recorded, both agree."""
    skip_without("lightning")
    write(tmp_path, "lightning_module.py")
    alone = run(tmp_path, "lightning_module.py")
    done = run(tmp_path, *OURS, "--strict", "lightning_module.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done.stdout) == said(alone.stdout)
    assert alone.stdout.count(" ends with ") == 2
