"""`trainguard init`: the guard file that it writes, and what it refuses."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forks import command
from trainguard.events.component import Component
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

SCRIPTS = Path(__file__).parent / "scripts"
_ZEROED = "            optimizer.zero_grad()\n            loss.backward()"
_CONTRAST = "        optimizer.zero_grad()\n        loss.backward()"
# {project: (what init is given, a file, what is right in it, what is wrong, what is found then)}
PROJECTS = {
    "sentiment": (
        ("sentiment", "--config", "config.yaml"),
        *("sentiment/train.py", _ZEROED, "            loss.backward()", "gradients_start_empty"),
    ),
    "segment": (
        ("src/segment",),
        *("src/segment/engine.py", "    net.eval()\n", "", "evaluation_mode_is_on"),
    ),
    "pollution": (
        ("train.py",),
        *("pollution/model.py", "Adam(self.", "Adam(self.rnn."),
        "optimizer_holds_every_trainable_parameter",
    ),
    "tagger": (
        ("train.py",),
        *("tagger/losses.py", "logits.flatten(0, 1)", "logits.softmax(-1).flatten(0, 1)"),
        "logits_are_not_normalised_twice",
    ),
    "contrast": (
        ("-m", "contrast"),
        *(
            "contrast/__main__.py",
            _CONTRAST,
            "        loss.backward()\n        optimizer.zero_grad()",
        ),
        "every_trainable_parameter_moves",
    ),
}

# The same of the loaders, where the project has a function or a data module that makes them.
LOADERS = {
    "sentiment": ("sentiment/data.py", '"dev": (128, 2)', '"dev": (128, 1)', "splits_are_disjoint"),
    "segment": (
        *("src/segment/shapes.py", "DataLoader(valid, batch)", "DataLoader(train, batch)"),
        "splits_are_disjoint",
    ),
    "pollution": (
        *("pollution/data.py", "batch_size, shuffle=True)", "batch_size)"),
        "epochs_are_reshuffled",
    ),
}


LOSSES = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, rows):
        return self.layers(rows)


def spectral_loss(prediction, target):
    return (prediction - target).square().sum(dim=-1).sqrt().mean()
"""
MAIN = """\
import torch
from losses import Net, spectral_loss

def main():
    torch.manual_seed(0)
    net = Net(12)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(30):
        rows = torch.randn(16, 6)
        loss = spectral_loss(net(rows), rows[:, :3])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def project(tmp_path):
    """Write a script that needs an argument."""
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def guarded(folder, *options: str) -> str:
    """Return what pytest says of the guards in a folder."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--trainguard"]
    done = subprocess.run(
        [*words, *options], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout


def test_a_guard_that_passes_and_fails(project) -> None:
    """It passes on the script as it is, and fails once that is broken."""
    done = command(project, *WORDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("guard_train.py is written: run `pytest --trainguard guard_")
    assert "\n[tool.trainguard]\n" in done.stdout
    assert not (project / "pyproject.toml").exists()
    text = (project / "guard_train.py").read_text()
    assert '"train.py",\n    args=["--lr", "0.01"],\n    steps=20,\n    batch=16,  # seen' in text
    assert 'trainable=("*",),  # guess' in text
    assert "failed" not in guarded(project)
    (project / "train.py").write_text(TRAIN.replace("optimizer.zero_grad()", "pass"))
    assert "gradients_start_empty" in guarded(project)


def test_a_guard_of_a_package(tmp_path) -> None:
    """The one script of a folder is run, whatever its name; what it is made of is declared."""
    package = tmp_path / "speech"
    package.mkdir()
    (package / "losses.py").write_text(LOSSES)
    (package / "main.py").write_text(MAIN)
    done = command(tmp_path, "init", "--write", "--steps", "20", "speech")
    assert done.returncode == 0, done.stderr
    assert "  loss      spectral_loss (speech/losses.py:" in done.stdout
    assert "  model     Net (speech/losses.py:" in done.stdout
    assert "+ [tool.trainguard]\n" in done.stdout
    assert (tmp_path / "pyproject.toml").is_file()
    told = guarded(tmp_path, "-k", "spectral or net")
    assert "1 failed" in told
    assert "guard_main.py::spectral::gradient_is_finite" in told
    mended = LOSSES.replace(".sum(dim=-1).sqrt()", ".sum(dim=-1).add(1e-6).sqrt()")
    (package / "losses.py").write_text(mended)
    assert "failed" not in guarded(tmp_path, "-k", "spectral or net")


@pytest.mark.parametrize("project", PROJECTS)
def test_a_guard_of_a_project(project, tmp_path) -> None:
    """What is written of a project of several modules passes, and fails once that is broken."""
    folder = tmp_path / project
    shutil.copytree(SCRIPTS / project, folder)
    given, name, right, wrong, invariant = PROJECTS[project]
    pytest.importorskip({"pollution": "lightning", "tagger": "transformers"}.get(project, "torch"))
    done = command(folder, "init", *given)
    assert done.returncode == 0, done.stderr
    told = guarded(folder)
    assert " failed" not in told, told
    assert " passed" in told
    spoil(folder / name, right, wrong)
    assert f"::{invariant}" in guarded(folder)
    if project in LOADERS:
        name, right, wrong, invariant = LOADERS[project]
        spoil(folder / name, right, wrong)
        assert f"::loaders::{invariant}" in guarded(folder, "-k", "loaders")


def spoil(file: Path, right: str, wrong: str) -> None:
    """Write what is wrong into a file."""
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))


def test_a_folder_of_several_scripts(tmp_path) -> None:
    """They are named, and nothing is run."""
    for name in ("first.py", "second.py", "test_first.py"):
        (tmp_path / name).write_text("loss.backward()\n")
    done = command(tmp_path, "init", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        ". has 2 scripts that may train: first.py, second.py. Give the one that does.\n"
    )


def test_components_become_declarations() -> None:
    """Names that mean two things are told apart, and inputs called as an option stand apart."""
    source, loss = "losses.py:3", ("x", "real", "B 2", -1.0, 2.0, True, "")
    option = ("reduction", "value", "", 0.0, 0.0, False, "'sum'")
    made = [
        Component(kind="loss", name="focal_loss", module="losses", source=source, inputs=(loss,)),
        Component(
            kind="loss",
            name="l2",
            module="losses",
            source=source,
            inputs=(loss, option),
            sizes=(("B", 64, 64), ("T", 7, 7)),
        ),
        Component(kind="schedule", name="build", module="train", source=source, rate=0.1),
        Component(kind="model", name="Net", module="train", source=source, obstacle="it has none"),
        Component(
            kind="loader",
            name="make",
            module="data",
            source=source,
            splits=(("train", "make('a')", 4, "in order"), ("val", "make('b')", 0, "in order")),
        ),
    ]
    text = render_guard(Script("train.py"), summarize_run(Trace("x", ())), {}, made, "src")
    compile(text, "guard.py", "exec")
    for line in (
        'sys.path.insert(0, str(Path(__file__).parent / "src"))',
        "from losses import focal_loss, l2",
        "focal = tg.Loss(",
        '    x=tg.real("B 2", -1.0, 2.0),  # guess: the range that was seen',
        "l2_loss = tg.Loss(",
        """        "reduction": tg.choice('sum'),  # as it was given""",
        '    sizes={"B": (2, 4), "T": 7},  # guess: fewer samples do, other sizes stay',
        "    base_rate=0.1,  # the rate that its optimizer had",
        "loaders = tg.Loader(\n    lambda: {\n        \"train\": make('a'),",
        '        "train": {"batch": 4},\n        "val": {"shuffled": False},',
        "# Not declared: model `Net` (losses.py:3), as",
    ):
        assert f"{line}\n" in text


def test_a_file_that_is_there_is_kept(project) -> None:
    """Nothing is run, and it is one sentence with the way out; --write writes the rest."""
    (project / "guard_train.py").write_text("mine")
    done = command(project, *WORDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "guard_train.py is there already. Move it away, or edit it instead.\n"
    assert (project / "guard_train.py").read_text() == "mine"
    (project / "guard_train.py").unlink()
    done = command(project, *WORDS)
    again = "`trainguard init --write --steps 20 train.py --lr 0.01` writes this too"
    assert again in done.stdout
    (project / "guard_train.py").write_text("mine")
    done = command(project, "init", "--write", *WORDS[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("guard_train.py is there already.\n\npyproject.toml has now:\n")
    assert (project / "guard_train.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "text", "code", "told"),
    [
        ("gone.py", None, 2, "There is no script gone.py."),
        (".", None, 2, ". has no script that trains."),
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
    script = Script(path, args=args, steps=5, module=len(path) % 2 > 0)
    text = render_guard(script, summarize_run(Trace("x", ())), {"batch": 3, "trainable": ("*",)})
    compile(text, "guard.py", "exec")
    assert guard_name(script).isidentifier()
