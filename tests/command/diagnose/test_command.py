"""`trainguard diagnose`: what it prints, what it writes, and how it ends."""

import json
import subprocess
import sys

import pytest

from tests.forks import command

LINES = [f"step {n} | loss {2.0 * 0.97**n:.4f} | lr 1.00e-03\n" for n in range(40)]


@pytest.fixture
def log(tmp_path):
    """Write the output of a healthy run."""
    file = tmp_path / "train.log"
    file.write_text("".join(LINES))
    return file


def test_a_healthy_log_passes(log) -> None:
    """Nothing is found, and the report says what was read."""
    ended = command(log.parent, "diagnose", "train.log")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "train.log: 40 rows, step 0 to 39, output: train.log" in ended.stdout
    assert "columns   loss, lr" in ended.stdout


def test_a_broken_one_fails_and_is_told_as_json(log) -> None:
    """The finding has its step, in the report and in the file."""
    log.write_text("".join(LINES) + "step 40 | loss nan | lr 1.00e-03\n")
    ended = command(log.parent, "diagnose", "--json", "out.json", "train.log")
    assert ended.returncode == 1
    assert (
        "loss_is_finite: the loss of `train.log` is not finite\n  at        step 40" in ended.stdout
    )
    (run,) = json.loads((log.parent / "out.json").read_text())["runs"]
    (found,) = run["findings"]
    assert (found["invariant"], found["rank"], found["at"]["step"]) == (
        "loss_is_finite",
        "broken",
        40,
    )
    assert run["log"]["columns"] == ["loss", "lr"]


def test_a_page_has_the_curves_and_each_finding_at_its_step(log) -> None:
    """Two runs are on one page; what is broken and what is noted is marked, and numbered on."""
    log.write_text("".join(LINES) + "step 60 | loss nan | lr 1.00e-03\n")
    flat = "".join(f"{n},{3 + n % 2 / 1e4},{n / 1e4}\n" for n in range(40))
    (log.parent / "flat.csv").write_text(f"step,loss,val_loss\n{flat}")
    ended = command(log.parent, "diagnose", "--html", "out.html", "train.log", "flat.csv")
    assert ended.returncode == 1, ended.stderr
    page = (log.parent / "out.html").read_text(encoding="utf-8")
    assert page.count("<h1>") == 2
    assert page.count('class="curve"') == 2 + 2  # loss and rate, loss and validation loss
    assert '<line class="broken" x1="1000.0"' in page
    assert 'title="step 60: loss_is_finite">1</a>' in page
    assert '<line class="note"' in page
    assert ': loss_falls">' in page
    assert "<script" not in page


def test_formats_tell_of_each_run(log) -> None:
    """What is found in two runs is in each format, and what is printed is that format alone."""
    log.write_text("".join(LINES) + "step 60 | loss nan | lr 1.00e-03\n")
    rows = "".join(f"{n},{3 * 0.9**n if n < 39 else 'nan'}\n" for n in range(40))
    (log.parent / "two.csv").write_text(f"step,loss\n{rows}")
    files = [f"--format={name}=out.{name}" for name in ("github", "sarif", "junit", "markdown")]
    words = (*files, "--format=json", "train.log", "two.csv")
    ended = command(log.parent, "diagnose", *words)
    assert ended.returncode == 1, ended.stderr
    assert len(json.loads(ended.stdout)["runs"]) == 2
    text = {name: (log.parent / f"out.{name}").read_text() for name in ("github", "markdown")}
    broken = [line.split(",")[0] for line in text["github"].splitlines() if "::error" in line]
    assert set(broken) == {"::error file=train.log", "::error file=two.csv"}
    assert text["markdown"].count("## trainguard") == 2
    (sarif,) = json.loads((log.parent / "out.sarif").read_text())["runs"]  # GitHub takes only one
    assert len(sarif["results"]) >= 2
    assert (log.parent / "out.junit").read_text().count("<testsuite ") == 2


def test_an_excuse_silences_it(log) -> None:
    """What is excused is told with its reason; an excuse for nothing fails."""
    log.write_text("".join(LINES) + "step 40 | loss nan | lr 1.00e-03\n")
    excuse = ("--allow", "loss_is_finite=it was stopped there")
    assert command(log.parent, "diagnose", *excuse, "train.log").returncode == 0
    log.write_text("".join(LINES))
    assert command(log.parent, "diagnose", *excuse, "train.log").returncode == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.log",), "none.log is not there."),
        (("itself",), "itself is not there."),
        (("--column", "loss", "train.log"), "--column loss names no column."),
        (("--column", "lss=x", "train.log"), "Did you mean 'loss'?"),
        (("--column=loss=x", "--column=loss=y", "train.log"), "loss=y names a column twice."),
        (("--peak", "inf", "train.log"), "--peak inf cannot be."),
        (("--json", "train.log", "train.log"), "train.log is given twice."),
        (("--select", "loss_is_fine", "train.log"), "matches no invariant."),
    ],
)
def test_bad_input_is_one_sentence(log, words, told) -> None:
    """It ends with 2 and without a traceback."""
    (log.parent / "itself").symlink_to("itself")
    ended = command(log.parent, "diagnose", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_trace_of_ours_is_judged_as_a_run(log) -> None:
    """A trace of `trainguard run` is judged by all that judges a recorded run."""
    step = {
        "event": "Step",
        "step": 0,
        "losses": [float("nan")],
        "loss": float("nan"),
        "received": 1,
    }
    header = {"subject": "train.py", "conditions": {"ended": "finished"}, "promises": {}}
    log.write_text(json.dumps(header) + "\n" + json.dumps(step) + "\n")
    ended = command(log.parent, "diagnose", "train.log")
    assert ended.returncode == 1
    assert "the loss of `train.py` is not finite" in ended.stdout


def test_torch_is_not_imported(log) -> None:
    """Logs are read and judged where there is no torch, and without its start-up."""
    code = (
        "import sys; sys.argv[1:] = ['diagnose', 'train.log']\n"
        "from trainguard.command.cli import app\n"
        "try: app()\n"
        "finally: print({'torch', 'numpy', 'hypothesis'} & sys.modules.keys())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=log.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.endswith("set()\n"), done.stderr
