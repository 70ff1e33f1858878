"""Trainings of well-known frameworks, unchanged, under `trainguard run`: nothing is found."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
# {script: (packages it needs, optimizer steps it makes)}
NEEDS = {
    "mnist.py": ((), 48),
    "nanogpt.py": ((), 41),
    "compiled.py": ((), 40),
    "sharded.py": ((), 12),
    "trainer.py": (("transformers", "accelerate"), 24),
    "lightning_module.py": (("lightning",), 32),
    "accelerated.py": (("accelerate",), 32),
    "engine.py": (("ignite",), 64),
    "averaged.py": (("x_transformers", "ema_pytorch"), 40),
    "keras_fit.py": (("keras",), 24),
}
QUIET = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, in a folder of its own."""
    words = [sys.executable, *command]
    return subprocess.run(
        words, cwd=folder, env=QUIET, capture_output=True, text=True, check=False, timeout=240
    )


def skip_without(*packages: str) -> None:
    """Skip where a framework is not installed, by its name."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed here: pip install 'trainguard[frameworks]'")


@pytest.mark.parametrize("script", NEEDS)
def test_a_framework_is_recorded_and_passes(script: str, tmp_path: Path) -> None:
    """Every optimizer step is seen, and not one finding or note is made."""
    packages, steps = NEEDS[script]
    skip_without(*packages)
    done = run(
        tmp_path, "-m", "trainguard", "run", "--strict", "--json", "out.json", str(SCRIPTS / script)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["findings"] == []
    assert told["trace"]["steps"] == steps


def test_two_replicas_are_recorded(tmp_path: Path) -> None:
    """Each process of a launcher records its own; only the first one reports."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = ("-m", "trainguard", "run", "--strict", "--json", "out.json")
    done = run(tmp_path, *launcher, *ours, str(SCRIPTS / "replicas.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("= trainguard =") == 1
    for name in ("out.json", "out.json.rank1"):
        told = json.loads((tmp_path / name).read_text())
        assert (told["findings"], told["trace"]["steps"]) == ([], 16)


@pytest.mark.parametrize("kind", ["flat", "original", "fsdp2"])
def test_sharded_models_are_recorded(kind: str, tmp_path: Path) -> None:
    """Two processes print what they print alone, and are judged: a defect is found at its line."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours, script = ("-m", "trainguard", "run", "--strict"), str(SCRIPTS / "shards.py")
    alone = run(tmp_path, *launcher, script, kind)
    done = run(tmp_path, *launcher, *ours, script, kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _said_by_ranks(done.stdout) == _said_by_ranks(alone.stdout)
    assert len(_said_by_ranks(alone.stdout)) == 40
    broken = run(tmp_path, *launcher, *ours, script, kind, "left")
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "1 broken" in broken.stdout
    assert "gradients_start_empty: " in broken.stdout


def _said_by_ranks(printed: str) -> list[str]:
    """Return the lines of all ranks in an order of their own."""
    return sorted(line for line in printed.splitlines() if line.startswith("rank "))


def test_a_defect_inside_a_framework_is_found(tmp_path: Path) -> None:
    """The tests above can fail: without zero_grad, Accelerate's loop has a finding at its line."""
    skip_without("accelerate")
    text = (SCRIPTS / "accelerated.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(text.replace("            optimizer.zero_grad()\n", ""))
    done = run(tmp_path, "-m", "trainguard", "run", "--json", "out.json", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert found["invariant"] == "gradients_start_empty"
    assert Path(found["at"]["file"]).name == "train.py"
