"""Logs as sides of a comparison, and what is told of the settings of their runs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.observe.log.test_formats import FORMATS
from trainguard.command import cli
from trainguard.command.compare.side import side
from trainguard.observe.log.configuration import settings_beside

ROWS = [(n, 2.0 * 0.97**n, 1e-3, 1.0) for n in range(60)]
WORSE = [(n, 2.2 * 0.97**n, 1e-3, 1.0) for n in range(0, 120, 2)]


def compare(*words: object):
    """Run the command in this process."""
    return CliRunner().invoke(cli.app, ["compare", *map(str, words)])


@pytest.mark.parametrize("write", FORMATS)
def test_each_format_is_a_side(tmp_path, write) -> None:
    """Two runs are compared up to the last step of both, and by steps rather than by rows."""
    for name, rows in (("a", ROWS), ("b", WORSE)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, rows, "step")
    done = compare(tmp_path / "a", tmp_path / "b", "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    assert "up to     step 59: as far as both go" in done.stdout
    assert "losses    differ from step 0" in done.stdout
    told = json.loads((tmp_path / "out.json").read_text())
    (change,) = [each for each in told["changes"] if each["measure"] == "loss"]
    assert change["share"] == pytest.approx(0.1, abs=1e-6)


def test_a_margin_is_held_against_logs(tmp_path) -> None:
    """A run that is surely worse than stated ends with 1; with itself it is alike."""
    for name, rows in (("a", ROWS), ("b", [(n, 1.5 * v, r, g) for n, v, r, g in ROWS])):
        (tmp_path / name).mkdir()
        FORMATS[0](tmp_path / name, rows, "step")
    a, b = (tmp_path / name / "metrics.csv" for name in ("a", "b"))
    assert compare(a, b, "--loss-margin", "5%").exit_code == 1
    done = compare(a, a, "--loss-margin", "5%")
    assert (done.exit_code, "bit for bit alike" in done.stdout) == (0, True)


ODD = {
    "steps that never meet": ([(n + 100, *row) for n, *row in ROWS], "have no step in common"),
    "losses as large as they can be": ([(n, 1.7e308, r, g) for n, _, r, g in ROWS], "-> inf"),
    "and of both signs": (
        [(n, (-1) ** n * 1.7e308, r, g) for n, _, r, g in ROWS],
        "to more than +1000%",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_logs_are_compared_as_far_as_they_go(tmp_path, case) -> None:
    """Nothing is said to be alike that is not, and nothing is too large."""
    rows, told = ODD[case]
    for name, own in (("a", ROWS), ("b", rows)):
        (tmp_path / name).mkdir()
        FORMATS[0](tmp_path / name, own, "step")
    done = compare(tmp_path / "a", tmp_path / "b", "--json", tmp_path / "out.json")
    assert (done.exit_code, told in done.stdout) == (0, True), done.output
    assert "alike" not in done.stdout


def test_what_differs_in_settings_is_told(tmp_path) -> None:
    """Settings beside a log are compared by name; what is alike is not told."""
    for name, rate in (("a", "0.1"), ("b", "0.2")):
        (tmp_path / name).mkdir()
        FORMATS[0](tmp_path / name, ROWS, "step")
        text = f"seed: 3\noptim:\n  rate: {rate}  # by hand\n  name: adamw\n"
        (tmp_path / name / "hparams.yaml").write_text(text)
        (tmp_path / name / "requirements.txt").write_text(f"torch==2.1{rate[-1]}.0\nnumpy==2.0\n")
    done = compare(tmp_path / "a", tmp_path / "b")
    assert "differs   optim.rate: 0.1 in A, 0.2 in B" in done.stdout
    assert "differs   torch: 2.11.0 in A, 2.12.0 in B" in done.stdout
    assert "numpy" not in done.stdout
    assert "seed:" not in done.stdout


def test_a_log_that_is_none_is_refused(tmp_path) -> None:
    """One sentence, and exit code 2."""
    (tmp_path / "a.log").write_text("Done.\n")
    done = compare(tmp_path / "a.log", tmp_path / "a.log")
    assert done.exit_code == 2
    assert "says no number by name" in done.stderr


BESIDE = {
    "config.yaml": (
        "_wandb:\n  value:\n    cli_version: 0.1\nlr:\n  desc: null\n  value: 0.001\n",
        {"lr.desc": "null", "lr": "0.001"},
    ),
    "args.json": ('{"lr": 0.1, "model": {"depth": 3}, "host": "x"}',
                  {"lr": "0.1", "model.depth": "3"}),
    "trainer_state.json": ('{"max_steps": 9, "global_step": 3, "log_history": []}',
                           {"max_steps": "9"}),
    "params.yml": ("a: 1\nb: [1, 2]\n\n- c\n", {"a": "1", "b": "[1, 2]"}),
    "hparams.json": ('{"lr": ', {}),
    "other.json": ('{"lr": 1}', {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_settings_are_read_as_tools_write_them(tmp_path, name) -> None:
    """Each plain value by its full name; what cannot be read says nothing."""
    text, settings = BESIDE[name]
    (tmp_path / name).write_text(text)
    assert dict(settings_beside([tmp_path / "metrics.csv"])) == settings


def test_settings_of_mlflow_and_hydra(tmp_path) -> None:
    """They stand in a folder of their own."""
    for path, text in (("1/params/lr", "0.1"), ("2/.hydra/config.yaml", "lr: 0.2")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    beside = [Path("1/metrics/train/loss"), Path("2/train.log")]
    told = [dict(settings_beside([tmp_path / path])) for path in beside]
    assert told == [{"lr": "0.1"}, {"lr": "0.2"}]


def test_a_folder_of_logs_is_a_side_of_so_many_runs(tmp_path) -> None:
    """Each run in it is one of a pair."""
    for seed in "12":
        (tmp_path / seed).mkdir()
        FORMATS[0](tmp_path / seed, ROWS, "step")
    assert len(side(str(tmp_path)).traces) == 2
