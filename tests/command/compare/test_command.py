"""`trainguard compare`: what it prints, writes and exits with."""

import json
import math
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from tests.command.compare.runs import run, write
from tests.command.run.conftest import Folder
from tests.forks import Started
from trainguard.command import cli

LOOPS = """
import trainguard as tg
from torch import nn, optim, randn

def train(rate=0.1):
    net = nn.Linear(4, 1)
    optimizer = optim.SGD(net.parameters(), lr=rate)
    for _ in range(20):
        loss = (net(randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

slow = tg.Loop(train, arguments={"rate": 0.001}, steps=15)
"""


def compare(*words: str):
    """Run the command in this process."""
    return CliRunner().invoke(cli.app, ["compare", *words])


@pytest.fixture
def pairs(tmp_path) -> tuple[str, str, str]:
    """Return three folders with three traces each: a baseline, one a little slower, and worse."""
    for seed in range(3):
        loss = 1 + 0.1 * seed
        write(tmp_path / "old" / str(seed), run(loss=loss))
        write(tmp_path / "slower" / str(seed), run(loss=loss, seconds=0.0104))
        worse = run(loss=loss + 0.1, memory=110 << 20, count=60, threads=2)
        write(tmp_path / "worse" / str(seed), worse)
    return tuple(str(tmp_path / name) for name in ("old", "slower", "worse"))


def test_without_margins_nothing_fails(pairs) -> None:
    """All that differs is told, and that is all."""
    old, _, worse = pairs
    done = compare(old, worse)
    assert done.exit_code == 0
    assert "differs   threads: 1 in A, 2 in B" in done.stdout
    assert "paired    3 runs of each, in turns" in done.stdout
    assert "memory    100.0 MiB -> 110.0 MiB, +10.00%" in done.stdout
    assert "WORSE" not in done.stdout


def test_worse_than_a_margin(pairs) -> None:
    """Exit code 1, and the measure that is worse is named."""
    old, _, worse = pairs
    done = compare(old, worse, "--loss-margin", "2%", "--memory-margin", "20 MiB")
    assert done.exit_code == 1
    told = " ".join(done.stdout.split())
    assert "loss 1.1" in told
    assert ": WORSE than the 2% allowed" in told
    assert "100.0 MiB -> 110.0 MiB, +10.00%: within the 20 MiB allowed" in told


def test_within_a_margin(pairs) -> None:
    """Exit code 0."""
    old, slower, _ = pairs
    done = compare(old, slower, "--time-margin", "10%")
    assert (done.exit_code, "within the 10% allowed" in done.stdout) == (0, True)
    assert compare(old, slower, "--time-margin", "3%").exit_code == 1


def test_what_two_runs_cannot_tell(tmp_path) -> None:
    """Where the interval reaches beyond the margin, B may be worse; nor are its ends figures."""
    for seed, seconds in enumerate((0.012, 0.005)):
        write(tmp_path / "old" / str(seed), run(seconds=0.01))
        write(tmp_path / "new" / str(seed), run(seconds=seconds))
    done = compare(str(tmp_path / "old"), str(tmp_path / "new"), "--time-margin", "10%")
    told = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert "to more than +1000%, 2 runs)" in told
    assert ": may be worse than the 10% allowed: too few runs to tell" in told


def test_the_document(pairs, tmp_path) -> None:
    """It holds all that is printed, in plain values."""
    old, _, worse = pairs
    file = tmp_path / "out.json"
    assert compare(old, worse, "--loss-margin", "2%", "--json", str(file)).exit_code == 1
    told = json.loads(file.read_text())
    assert (told["a"], told["b"], told["runs"]) == (old, worse, 3)
    assert told["worse"] == ["loss"]
    assert told["differs"] == [{"condition": "threads", "a": "1", "b": "2"}]
    assert [change["measure"] for change in told["changes"]] == ["loss", "time", "memory"]
    assert told["changes"][0]["margin"] == "2%"


def test_an_explosion_is_json_too(tmp_path) -> None:
    """What is not finite is null."""
    a, b = write(tmp_path / "a", run()), write(tmp_path / "b", run(loss=math.nan))
    file = tmp_path / "out.json"
    assert compare(a, b, "--loss-margin", "1%", "--json", str(file)).exit_code == 1
    assert json.loads(file.read_text())["changes"][0]["b"] is None


def test_the_picture(pairs, tmp_path) -> None:
    """It is a PNG; where matplotlib is missing, that is said before anything runs."""
    pytest.importorskip("matplotlib")
    old, _, worse = pairs
    file = tmp_path / "out.png"
    assert compare(old, worse, "--plot", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_no_picture_without_matplotlib(pairs, tmp_path, monkeypatch) -> None:
    """One sentence, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "trainguard.command.compare.picture", raising=False)
    old, _, worse = pairs
    done = compare(old, worse, "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 2
    assert done.stderr.startswith("A picture needs matplotlib, which is not installed: pip install")


REFUSED = {
    "other numbers of runs": (("old", "one"), "A holds 3 traces and B holds 1."),
    "more pairs than traces": (("old", "slower", "--repeats", "4"), "--repeats 4 cannot be"),
    "steps of what is over": (("old", "slower", "--steps", "4"), "--steps 4 cannot be"),
    "no margin": (("old", "slower", "--time-margin", "3"), "--time-margin '3' is no margin."),
    "no such side": (("old", "older"), "There is no script, loop, trace or log "),
    "no such folder": (("old", "slower", "--json", "x/y"), "--json "),
    "one file for two": (("old", "slower", "--json", "x", "--plot", "./x"), "x is given twice."),
    "over what is read": (("old", "slower", "--json", "old/1"), "1 is given twice."),
    "no time": (("old", "slower", "--timeout", "0"), "--timeout 0 leaves no time."),
    "nothing known": (("old", "dumb", "--memory-margin", "1%"), "--memory-margin cannot be held"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared(pairs, tmp_path, case, monkeypatch) -> None:
    """One sentence on stderr, exit code 2, and nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one", run())
    for seed in range(3):
        write(tmp_path / "dumb" / str(seed), run(memory=0))
    words, sentence = REFUSED[case]
    done = compare(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)


def test_a_trace_without_steps(tmp_path) -> None:
    """There is nothing to compare with: a side failed."""
    a, b = write(tmp_path / "a", run()), write(tmp_path / "b", run(count=0))
    done = compare(a, b)
    assert done.exit_code == 3
    assert done.stderr.startswith(f"B ({b}) could not be run: it made no training step.")


def test_a_script_against_traces(tmp_path) -> None:
    """It is run in a process of its own, each time under the number of its pair."""
    folder = Folder(tmp_path)
    folder.trains(before="torch.manual_seed(int(sys.argv[1]))").rename(tmp_path / "new.py")
    for seed in range(2):
        write(tmp_path / "old" / str(seed), run(loss=0.1))
    words = ("old", "new.py {seed}", "--steps", "10", "--json", "out.json")
    done = folder.python("-m", "trainguard", "compare", *words)
    assert (done.returncode, done.stderr) == (0, "")
    told = folder.document()
    assert (told["runs"], told["repeat_bit_for_bit"], told["worse"]) == (2, False, [])
    loss = told["changes"][0]
    assert (loss["pairs"], loss["paired"]) == (2, "runs")
    assert loss["low"] < loss["by"] < loss["high"]
    assert "B  new.py {seed}: 10 steps of AdamW" in done.stdout


def test_loops(tmp_path) -> None:
    """A function that trains against a declared loop, seeded alike."""
    folder = Folder(tmp_path)
    folder.write("loops.py", LOOPS)
    done = folder.python(
        *("-m", "trainguard", "compare", "loops.py::train", "loops.py::slow"),
        *("--repeats", "1", "--loss-margin", "10%", "--json", "out.json"),
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert folder.document()["first_step_that_differs"] == 1  # one seed, one initialisation
    assert "15 steps of SGD" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("train.py", "import no_such_module\n", "it failed: ModuleNotFoundError: "),
        ("loops.py::f", "def f():\n    raise RuntimeError('no data')\n", "it failed: RuntimeError"),
        ("loops.py::f", "def f():\n    return 1\n", "`f` made no training step"),
        ("loops.py::f", "f = 3\n", "loops.py::f is 3, which does not train"),
        ("loops.py::f", "import no_such_module\nf = 3\n", "it failed: ModuleNotFoundError: "),
    ],
)
def test_a_side_that_fails(tmp_path, name, text, sentence, monkeypatch) -> None:
    """Exit code 3, and the end of what it wrote to stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name.partition("::")[0]).write_text(text)
    done = compare(name, name)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith(f"A ({name}) could not be run: {sentence}")
    if "failed" in sentence:
        assert "Traceback" in done.stderr


def test_a_side_that_takes_too_long(tmp_path, monkeypatch) -> None:
    """It is ended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    done = compare("train.py", "train.py", "--timeout", "1")
    assert (done.exit_code, "still running after 1 seconds" in done.stderr) == (3, True)


def test_an_interrupt(tmp_path) -> None:
    """Exit code 130, and the side that ran is ended."""
    (tmp_path / "train.py").write_text(
        "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(3)\n"
        "pathlib.Path('ended').touch()\n"
    )
    command = [sys.executable, "-m", "trainguard", "compare", "train.py", "train.py"]
    environment = Folder(tmp_path).environment()
    with Started(command, cwd=tmp_path, env=environment) as process:
        while not (tmp_path / "begun").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    time.sleep(3)
    assert not (tmp_path / "ended").exists()
