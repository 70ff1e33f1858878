"""`trainguard mutate` on a small project, as a user runs it."""

import hashlib
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forks import Started, command

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
TRAIN = '''\
"""Tell circles apart."""

import torch
from torch import nn

from circles.data import build_loader


def train(epochs=3):
    """Train a small network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    loader = build_loader()
    for epoch in range(epochs):
        for points, label in loader:
            loss = nn.functional.cross_entropy(model(points), label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
        torch.save(model.state_dict(), "last.pt")


if __name__ == "__main__":
    train()
'''
DATA = '''\
"""Points on two circles."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def build_loader():
    """Return points, and which circle each is on."""
    angle, label = torch.rand(256) * 6.28, torch.arange(256) % 2
    points = torch.stack([angle.cos(), angle.sin()], 1) * (1.0 + label[:, None])
    return DataLoader(TensorDataset(points, label), batch_size=32, shuffle=True)
'''
GUARDS = """\
from circles.data import build_loader


def test_points_are_shuffled():
    first, second = (next(iter(build_loader()))[1] for _ in range(2))
    assert (first != second).any()


def test_all_points_are_served():
    assert sum(len(points) for points, _ in build_loader()) == 256
    assert all(len(points) == 32 for points, _ in build_loader())


def test_the_outer_circle_has_the_label_one():
    for points, label in build_loader():
        assert ((points.norm(dim=1) > 1.5) == label).all()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write a training that imports its data from a package, and guards of that."""
    root = tmp_path / "project"
    files = {"train.py": TRAIN, "circles/data.py": DATA, "tests/test_data.py": GUARDS}
    for name, text in {**files, "circles/__init__.py": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


def mutate(project, *words: str):
    """Run the command in an interpreter of its own, with the cache of this test."""
    line = [sys.executable, "-m", "trainguard", "mutate", *words]
    return subprocess.run(
        line, cwd=project, capture_output=True, text=True, timeout=1200, check=False
    )


def contents(root) -> dict[str, str]:
    """Return a checksum of each file of a folder."""
    files = [f for f in root.rglob("*") if f.is_file()]
    return {str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_guards_of_a_project(project, tmp_path) -> None:
    """Three operators are found by its guards; its own files stay as they are."""
    before, found = contents(project), tmp_path / "found.json"
    globs = "shuffle_off,labels_out_of_order,last_batch_dropped,zero_grad_dropped,softmax_before*"
    done = mutate(
        project, "train.py", "--guards", "tests", "--operators", globs, "--json", str(found), "-n2"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert contents(project) == before
    told = json.loads(found.read_text())
    results = {r["operator"].partition(".")[2]: r for r in told["results"]}
    assert results["shuffle_off"]["guards"] == ["tests/test_data.py::test_points_are_shuffled"]
    wrong = "tests/test_data.py::test_the_outer_circle_has_the_label_one"
    assert results["labels_out_of_order"]["guards"] == [wrong]
    assert results["labels_out_of_order"]["path"] == "circles/data.py"
    assert results["zero_grad_dropped"]["run"] == ["gradients_start_empty"]
    assert results["softmax_before_cross_entropy"]["outcome"] == "killed"
    assert results["last_batch_dropped"]["outcome"] == "equivalent"
    assert "2 of 4 noticed by 3 guards, 2 alone" in done.stdout


def test_survivors_are_noticed_by_what_is_proposed(project, tmp_path) -> None:
    """The declarations of the report, pasted: they pass as it is, and fail with the mistake."""
    found = tmp_path / "found.json"
    globs = "rate_times_100,rate_over_100,labels_out_of_order"
    done = mutate(project, "train.py", "--operators", globs, "--json", str(found))
    assert done.returncode == 1, done.stdout
    results = json.loads(found.read_text())["results"]
    assert [r["outcome"] for r in results] == ["survived"] * 3
    guards = ["import trainguard as tg", "from train import train", ""]
    for number, result in enumerate(results):
        assert result["proposal"] in " ".join(done.stdout.split())
        guards.append(f"found_{number} = {result['proposal']}")
    (project / "guard_found.py").write_text("\n".join(guards))
    assert judged(project, "guard_found.py", "--snapshot-update") == 0
    assert judged(project, "guard_found.py") == 0
    for number, result in enumerate(results):
        file = project / result["path"]
        before = file.read_text()
        subprocess.run(
            ["patch", "-p1"],  # the diff of the report is a patch
            cwd=project, input=result["diff"] + "\n", text=True, timeout=60, check=True,
        )  # fmt: skip
        assert judged(project, "guard_found.py", "-k", f"found_{number}") == 1
        file.write_text(before)


def judged(project, *words: str) -> int:
    """Return the exit code of `pytest --trainguard`."""
    line = [sys.executable, "-m", "pytest", "--trainguard", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(
        line, cwd=project, capture_output=True, text=True, timeout=1200, check=False
    ).returncode


def test_interrupted_and_resumed(project, tmp_path) -> None:
    """It goes on where it was, and its table is that of a run in one piece."""
    words = ("train.py", "--operators", "zero_grad*,rate_*,loss_rewrapped")
    line = [sys.executable, "-m", "trainguard", "mutate", *words]
    with Started(line, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        until = time.monotonic() + 300
        while not [*tmp_path.glob("cache/trainguard/mutate/*.jsonl")] and time.monotonic() < until:
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=120)
    assert (p.returncode, out) == (130, "")
    assert re.search(r"[1-5] of \d mutants were run: the same command goes on.", err)
    resumed, again = mutate(project, *words), mutate(project, *words, "--fresh")
    assert resumed.stdout == again.stdout
    assert "mistakes in train.py" in again.stdout


def test_no_time(project) -> None:
    """A training that does not fit into the budget as it is leaves none for its mutants."""
    first = mutate(project, "train.py", "--budget", "0.01s")
    assert (first.returncode, first.stdout) == (2, "")
    assert "takes longer than the --budget of 0.01 s as it is" in first.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print('no training')", "train.py cannot be judged as it is: "),
        ("import sys\nsys.exit(f'usage: {sys.argv[9:]}: no data')", "no data. Make it run by"),
        (
            TRAIN.replace("torch.manual_seed(0)", "import time; torch.manual_seed(time.time_ns())"),
            "is not deterministic: two runs of it part at step 0",
        ),
        ("def (", "is not Python: invalid syntax, line 1."),
    ],
)
def test_trainings_that_cannot_be_mutated(project, text, told) -> None:
    """One sentence, and nothing else."""
    (project / "train.py").write_text(text)
    done = command(project, "mutate", "train.py", "--fresh")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_arguments_of_the_script(project, tmp_path) -> None:
    """What stands behind two dashes is the script's own."""
    (project / "train.py").write_text(
        TRAIN.replace("    train()", "    import sys\n    train(int(sys.argv[1]))")
    )
    assert "Make it run by itself first" in command(project, "mutate", "train.py").stderr
    words = ("train.py", "--operators", "zero_grad_dropped", "--", "1")
    done = command(project, "mutate", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 mistake in train.py: 1 noticed, 0 not" in done.stdout


def test_a_module_is_run_by_its_name(project) -> None:
    """Mistakes are planted in its file, and what would notice them declares it as a module."""
    (project / "train.py").rename(project / "circles" / "train.py")
    words = ("-m", "circles.train", "--operators", "zero_grad_dropped,rate_over_100")
    done = command(project, "mutate", *words)
    assert done.stderr == ""
    assert "circles/train.py" in done.stdout
    lost = command(project, "mutate", "-m", "circles.trian")
    assert (lost.returncode, lost.stdout) == (2, "")
    assert "no module 'circles.trian' to run. Did you mean 'circles.train'?" in lost.stderr


def test_the_page_shows_what_happens(tmp_path, monkeypatch) -> None:
    """The example of the documentation, with its output."""
    page = (ROOT / "docs" / "mutate.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# circles\.py\n.*?)```", page, re.S)
    (words, told) = re.search(r"\$ trainguard (mutate .*?)\n(.*?)```", page, re.S).groups()
    (tmp_path / "circles.py").write_text(code)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = mutate(tmp_path, *shlex.split(words)[1:])
    assert done.stdout.strip() == told.strip()
