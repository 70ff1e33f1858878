"""`trainguard init`: the guard file that it writes, and what it refuses."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forks import command
from trainguard.events.trace import Trace
from trainguard.report.guard_file import guard_name, render_guard
from trainguard.report.run_summary import summarize_run
from trainguard.subjects.loop import Script

TRAIN = """\
import sys

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=float(sys.argv[2]))
features = torch.randn(64, 8)
for step in range(60):
    rows = torch.randint(0, 64, (16,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(features[rows]), features[rows].sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
"""
WORDS = ("init", "--steps", "20", "train.py", "--lr", "0.01")


@pytest.fixture
def project(tmp_path):
    """Write a script that needs an argument."""
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def guarded(folder) -> str:
    """Return what pytest says of the guards in a folder."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--trainguard"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout


def test_a_guard_that_passes_and_fails(project) -> None:
    """It passes on the script as it is, and fails once that is broken."""
    done = command(project, *WORDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("guard_train.py is written: run `pytest --trainguard guard_")
    text = (project / "guard_train.py").read_text()
    assert '"train.py",\n    args=["--lr", "0.01"],\n    steps=20,\n    batch=16,  # seen' in text
    assert 'trainable=("*",),  # guess' in text
    assert "failed" not in guarded(project)
    (project / "train.py").write_text(TRAIN.replace("optimizer.zero_grad()", "pass"))
    assert "gradients_start_empty" in guarded(project)


def test_a_file_that_is_there_is_kept(project) -> None:
    """Nothing is run, and it is one sentence with the way out."""
    (project / "guard_train.py").write_text("mine")
    done = command(project, *WORDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "guard_train.py is there already. Move it away, or edit it instead.\n"
    assert (project / "guard_train.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        ("gone.py", None, 2, "There is no script gone.py."),
        (".", None, 2, ". is a folder."),
        ("failing.py", "raise ValueError('no data')", 3, "ValueError: no data"),
        ("idle.py", "print('hello')", 2, "`idle.py` made no training step"),
    ],
)
def test_what_cannot_be_guarded(tmp_path, name, text, code, told) -> None:
    """The reason is told, and no file is written."""
    if text is not None:
        (tmp_path / name).write_text(text)
    done = command(tmp_path, "init", name)
    assert done.returncode == code
    assert told in done.stderr
    assert [*tmp_path.glob("guard_*")] == []


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.lists(st.text()))
def test_any_script_gives_code(path, args) -> None:
    """Whatever a script is called and given, its guard file is Python with that in it."""
    script = Script(path, args=args, steps=5)
    text = render_guard(script, summarize_run(Trace("x", ())), {"batch": 3, "trainable": ("*",)})
    compile(text, "guard.py", "exec")
    assert guard_name(path).isidentifier()
