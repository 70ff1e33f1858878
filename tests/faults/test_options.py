"""Every option of the commands and of the plugin, with ten values that nobody means."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainguard.observe.loss.observer
import trainguard.pytest_plugin.session  # noqa: F401 pytester forgets what it was first to import
from tests.command.compare.runs import run, write
from tests.command.memory.conftest import MODEL
from tests.faults.conftest import trouble
from tests.forks import command
from trainguard.command.cli import app

NUMBERS = ("", " ", "0", "-1", "nan", "inf", "1e400", "9" * 5000, "ten", "1,5")
AMOUNTS = ("", "%", "-5%", "nan%", "5 parsecs", "1e400", "9" * 5000, "3 ms ms", "\u0663%", "0x10")
GLOBS = ("", " ", ",", "[", "no_such", "loop.", "*.*.*", "\udcff", "a" * 5000, "loss*\n")
FILES = (
    *("", ".", "..", "/", "folder", "x" * 300, "train.py", "/dev/full", "circle", "a\n\udcffb"),
)
EXCUSES = ("", "=", "=x", "no_such=x", "loss_falls", "loss_falls=", "a==b", "\udcff=1", "x" * 5000)
NAMES = ("", " ", ":", "model:", ":Words", "no:such", "model:pairs", "math:sin", "\udcff", "[" * 99)
RUN = {
    **{f"--{name}": NUMBERS for name in ("steps", "timeout", "batch", "falls", "average")},
    **{f"--{name}": GLOBS for name in ("select", "ignore", "frozen", "trainable")},
    **{f"--{name}": FILES for name in ("json", "trace")},
    "--allow": (*EXCUSES, "loss_falls= "),
}
COMPARE = {
    **{f"--{name}": NUMBERS for name in ("repeats", "steps", "timeout")},
    **{f"--{name}-margin": AMOUNTS for name in ("loss", "time", "memory")},
    **{f"--{name}": FILES for name in ("json", "plot")},
}
SIZES = ("", "=", "B", "B=", "B=x", "B=-1", "B=0", "no=4", "B=1e9", "B=" + "9" * 5000)
INPUTS = ("", "=", "words", "words=", "words=4", "words=real(", "words=exit()", "no=real('B',0,1)")
MEMORY = {
    "--at": SIZES,
    "--input": (*INPUTS, "words=[1]*9", "words=__import__('os')"),
    **{f"--{name}": NAMES for name in ("loss", "optimizer", "dtype", "device", "fit")},
    "--budget": AMOUNTS,
    "--timeout": NUMBERS,
    **{f"--{name}": FILES for name in ("html", "png", "snapshot", "json")},
}
PLUGIN = dict.fromkeys(("select", "ignore", "devices", "dtypes", "files", "profile"), GLOBS)
TRAINING = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    net(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
"""
GUARD = """
import torch
import trainguard as tg
mse = tg.Loss(
    torch.nn.functional.mse_loss, input=tg.real("B", -3, 3), target=tg.real("B", -3, 3, grad=False)
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """Enter a folder with a script, a folder and a link that leads to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize("option", RUN)
def test_run(option: str, folder: Path, bench) -> None:
    """The script is refused or run, and stays as it was."""
    for value in RUN[option]:
        ended = command(folder, "run", f"{option}={value}", "train.py")
        told = trouble(ended.returncode, ended.stdout + ended.stderr)
        unharmed = (folder / "train.py").read_text() == TRAINING
        bench.hold((option, value), told or ("" if unharmed else "the script was written to"))


@pytest.mark.parametrize("option", COMPARE)
def test_compare(option: str, folder: Path, bench) -> None:
    """Two traces."""
    write(folder / "a.jsonl", run(count=9))
    for value in COMPARE[option]:
        ended = CliRunner().invoke(app, ["compare", "a.jsonl", "a.jsonl", f"{option}={value}"])
        bench.hold((option, value), trouble(ended.exit_code, ended.output))


@pytest.mark.parametrize("option", MEMORY)
def test_memory(option: str, folder: Path, bench) -> None:
    """A model of words."""
    (folder / "model.py").write_text(MODEL)
    given = ["--input", 'words=integer("B T", 0, 49)', "--at", "B=2", "--at", "T=3"]
    for value in MEMORY[option]:
        ended = command(folder, "memory", "model:Words", *given, f"{option}={value}")
        bench.hold((option, value), trouble(ended.returncode, ended.stdout + ended.stderr))


@pytest.mark.parametrize("name", ["run", "compare", "memory", "list", "explain"])
def test_what_a_command_is_about(name: str, folder: Path, bench) -> None:
    """A script, a trace, a model, a glob or a name that is none."""
    for value in (*NAMES, "folder", "/dev/null", "circle", "no.py", "train.py::x", "a" * 5000):
        words = [value, value] if name == "compare" else [value]
        ended = command(folder, name, *words)
        bench.hold((name, value), trouble(ended.returncode, ended.stdout + ended.stderr))


@pytest.mark.parametrize("option", PLUGIN)
def test_plugin(option: str, pytester: pytest.Pytester, bench) -> None:
    """Usage errors of pytest are refusals too."""
    pytester.makepyfile(guard_x=GUARD)
    for value in PLUGIN[option]:
        ended = pytester.runpytest_inprocess("--trainguard", f"--trainguard-{option}={value}")
        told = "\n".join(ended.outlines + ended.errlines)
        fine = ended.ret in (0, 1, 2, 4, 5) and "INTERNALERROR" not in told
        bench.hold((option, value), "" if fine and "Traceback" not in told else told)
