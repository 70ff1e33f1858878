"""What `trainguard mutate` is made of: copies, results that are kept, and what is told."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forks import command
from trainguard.command.mutate.command import exit_code, parse_time
from trainguard.command.mutate.mistakes.operator import mutants, operators
from trainguard.command.mutate.project import find_project
from trainguard.command.mutate.report import render_survey, survey_as_json, survey_as_page
from trainguard.command.mutate.result import Ledger, Survey, by_turns, result_of
from trainguard.command.mutate.seeds import came_to, end_of, is_worse, reseeded
from trainguard.command.mutate.trial import (
    HUNG,
    Trial,
    check_judged,
    check_repeats,
    is_same,
    scratch_folder,
)
from trainguard.core.errors import DeclarationError
from trainguard.events.loop import Step
from trainguard.events.trace import Trace

SOURCE = b"for x in xs:\n    o.zero_grad()\n    x.backward()\n    o.step()\no.zero_grad()\n"


def trial(*losses: float, printed: str = "", **files: str) -> Trial:
    """Return a run with these losses."""
    steps = tuple(Step(step=i, loss=loss) for i, loss in enumerate(losses))
    return Trial(code=0, trace=Trace("train.py", steps), printed=printed, files=files)


def test_times() -> None:
    """A budget is a number with a unit, or of seconds."""
    assert [parse_time(text) for text in ("90", "30s", "10m", "1.5h")] == [90, 30, 600, 5400]
    for text in ("soon", "10 days", "-3", "0m"):
        with pytest.raises(DeclarationError, match="is no time. Write 30s, 10m or 2h"):
            parse_time(text)


def test_a_copy_has_what_is_needed_and_no_more(tmp_path, monkeypatch) -> None:
    """Data and packages are copied, caches and environments are not; links are followed."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    for name in ("train.py", "pkg/data.py", "data/x.csv", ".git/head", "pkg/__pycache__/a.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "linked.csv").symlink_to(root / "data/x.csv")
    (root / "train.py").chmod(0o444)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root / "pkg"))
    project = find_project("train.py", (), ())
    project.check_size()
    project.copy(copy, {"train.py": b"mutant"})
    made = sorted(str(f.relative_to(copy)) for f in copy.rglob("*") if f.is_file())
    assert made == ["data/x.csv", "linked.csv", "pkg/data.py", "train.py"]
    assert (copy / "train.py").read_bytes() == b"mutant"
    assert not (copy / "linked.csv").is_symlink()
    assert (root / "train.py").read_text() == "train.py"
    assert project.paths(copy)[:2] == [str(copy), str(copy / "pkg")]
    before = project.fingerprint()
    (root / "pkg/data.py").write_text("other")
    assert project.fingerprint() != before


def test_results_outlive_an_interruption(tmp_path) -> None:
    """What was written is read again, but for a line that was cut off."""
    made = list(mutants(SOURCE, "train.py", operators(["gradients.*"])))
    file = tmp_path / "new" / "kept.jsonl"
    first, second = (result_of(m, "killed", run=("a", "b")) for m in made[:2])
    ledger = Ledger(file)
    ledger.add(first)
    ledger.add(second)
    assert Ledger(file).results == {first.key: first, second.key: second}
    file.write_text(file.read_text()[:-20])
    assert list(Ledger(file).results) == [first.key]


def test_each_operator_has_its_turn() -> None:
    """The first mutant of each operator comes before the second of any."""
    order = [
        m.key for m in by_turns([*mutants(SOURCE, "t.py", operators(["zero_grad_*", "step_*"]))])
    ]
    assert [key.partition(" ")[0].partition(".")[2] for key in order] == [
        "zero_grad_dropped",
        "zero_grad_in_each_micro_batch",
        "zero_grad_before_step",
        "step_before_backward",
        "zero_grad_dropped",
    ]  # fmt: skip


def test_what_differs_by_chance_is_not_compared() -> None:
    """Times of day and names are left out; what repeats is compared, files included."""
    whole = trial(1.0, 0.5, printed="loss 0.5\nat 10:01", best="a", log="x")
    again = trial(1.0, 0.5, printed="loss 0.5\nat 10:02", best="a", log="y")
    assert is_same(whole, again, trial(1.0, 0.5, printed="loss 0.5\nat 10:03", best="a", log="z"))
    assert not is_same(whole, again, trial(1.0, 0.5, printed="loss 0.6\nat 10:03", best="a"))
    assert not is_same(whole, again, trial(1.0, 0.5, printed="loss 0.5\nat 10:03", best="b"))
    assert not is_same(whole, again, trial(1.0, 0.4, printed="loss 0.5\nat 10:03", best="a"))


def test_what_a_step_is_called_is_not_compared() -> None:
    """In which mode a model without dropout is trained changes nothing; its norms would."""
    (step,) = trial(1.0).steps
    runs = [
        replace(trial(1.0), trace=Trace("train.py", (replace(step, **other),)))
        for other in ({"training": False, "source": "train.py:9", "clock": 7}, {"norm": 2.0})
    ]
    assert [is_same(trial(1.0), trial(1.0), run) for run in runs] == [True, False]


def test_a_training_that_cannot_be_mutated() -> None:
    """One sentence says why."""
    check_repeats("train.py", trial(1.0), trial(1.0))
    with pytest.raises(DeclarationError, match="not deterministic: two runs of it part at step 1"):
        check_repeats("train.py", trial(1.0, 0.5), trial(1.0, 0.6))
    with pytest.raises(DeclarationError, match="longer than the --budget of 60 s as it is"):
        check_judged("train.py", Trial(code=HUNG), 60)
    failed = Trial(code=3, printed="usage: train.py\ntrain.py: error: --data is required")
    with pytest.raises(DeclarationError, match="--data is required. Make .*train.py -- ARGS"):
        check_judged("train.py", failed, 60)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "There is no script. Write `trainguard mutate train.py`."),
        (("gone.py",), "There is no script 'gone.py'"),
        (("train.py", "--operators", "losses.sum"), "--operators losses.sum matches no operator."),
        (("train.py", "--guards", "tests"), "--guards tests: there is no such file or folder."),
        (("train.py", "--budget", "soon"), "--budget 'soon' is no time."),
    ],
)
def test_a_wrong_command_line(tmp_path, words, told) -> None:
    """What cannot be meant is said before anything is run."""
    (tmp_path / "train.py").touch()
    done = command(tmp_path, "mutate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(told)


def test_operators_are_listed(tmp_path) -> None:
    """Each has a row, and globs choose among them."""
    done = command(tmp_path, "mutate", "--list", "--operators", "rates.*, sum_for_mean")
    assert done.returncode == 0
    rows = done.stdout.splitlines()
    assert "losses.sum_for_mean" in rows[0]
    assert all(row.startswith("rates.") for row in rows[1:])


def test_the_report() -> None:
    """Survivors come first, with their lines and what would notice them; then the table."""
    made = list(mutants(SOURCE, "train.py", operators(["gradients.*"])))
    results = (
        result_of(made[0], "killed", run=("gradients_start_empty",), guards=("tests/g.py::x",)),
        result_of(made[1], "survived", noted=("loss_falls",), proposal='tg.Script("train.py")'),
        result_of(made[2], "equivalent"),
        result_of(made[3], "left"),
    )
    survey = Survey(script="train.py", results=results, seconds=1.0, guards=4, applied=3, of=64)
    keys = (results[1].key,)
    survey = replace(survey, compared=keys, harmless=keys)
    text = render_survey(replace(survey, broken=("batch_is_right",)))
    assert "harm      ends no worse than from other seeds" in text
    assert "harm      0 of 1 unnoticed end worse than from other seeds" in text
    other = render_survey(replace(survey, harmless=()))
    assert "harm      ends worse" in other
    assert "harm      1 of 1 unnoticed end worse" in other
    assert "    -o.zero_grad()\n    +pass" in text
    long = replace(results[1], title="Gradients " + "are never cleared and " * 8 + "add up.")
    text_of_long = render_survey(replace(survey, results=(long,)))
    assert "cleared and add up.\n    -o.zero_grad()\n    +pass\n  at " in text_of_long
    assert "notices   tg.Script(\"train.py\")" in text  # fmt: skip
    assert "noted     loss_falls: a note, which fails with --strict" in text
    assert "2 mistakes in train.py: 1 noticed, 1 not\n3 of 64 operators apply" in text
    assert "1 of 2 noticed by `trainguard run`" in text
    assert "1 of 2 noticed by 4 guards, 0 alone" in text
    assert "1 by gradients_start_empty: zero_grad_dropped" in text
    assert "not run   1 for lack of time: the same command goes on" in text
    assert "batch_is_right fails without any mistake, and notices none" in text
    plain = json.loads(survey_as_json(survey))
    assert plain["counts"] == {"killed": 1, "survived": 1, "equivalent": 1, "crashed": 0, "left": 1}
    assert plain["results"][1]["diff"].startswith("--- a/train.py")
    page = survey_as_page(survey)
    assert page.index("What nothing notices") < page.index("tg.Script(&#34;train.py&#34;)")
    assert page.index("tg.Script") < page.index("What is noticed") < page.rindex("tests/g.py::x")
    assert '<span class="in">+pass</span>' in re.sub(r"\s*pass", "pass", page)


def test_harm_is_what_no_seed_explains() -> None:
    """A mutant is worse than all seeds, or no loss; what measures something else is not told."""
    text = b"o = torch.optim.SGD(p, lr=0.1)\nloss = cross_entropy(z, y)\n"
    (slow,) = mutants(text, "train.py", operators(["rates.rate_over_100"]))
    (summed,) = mutants(text, "train.py", operators(["losses.sum_for_mean"]))
    whole, found = trial(*[1.0] * 20), trial(*[1.0] * 18, 2.0, 4.0)
    assert end_of(slow, whole, found) == {"SGD": 3.0}
    assert end_of(slow, whole, whole) is None
    assert end_of(summed, whole, found) is None
    seeds = [{"SGD": 1.0}, {"SGD": 2.5}]
    ends = [{"SGD": 2.5}, {"SGD": 3.0}, came_to(trial(float("nan")))]
    assert [is_worse(end, seeds) for end in ends] == [False, True, True]


def test_other_seeds() -> None:
    """Each seed of a script becomes another one, and one is set where there is none."""
    first, *_, last = reseeded(b'"""Train."""\nimport torch\ntorch.manual_seed(3)\n')
    assert first.splitlines()[1:] == [
        b"import torch; torch.manual_seed(1000); import torch",
        b"torch.manual_seed((3) + 1000)",
    ]
    assert b"(3) + 4000" in last


def test_a_project_is_where_the_script_is(tmp_path, monkeypatch) -> None:
    """Elsewhere, the folder of the script is copied; guards must be in what is copied."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far/train.py").touch()
    (tmp_path / "guard_x.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_project("far/train.py", (), ("guard_x.py",)).script == str(Path("far/train.py"))
    monkeypatch.chdir(tmp_path / "far")
    assert find_project("../far/train.py", (), ()).root == tmp_path / "far"
    with pytest.raises(DeclarationError, match="is not in .*far, which is what is copied"):
        find_project("train.py", (), ("../guard_x.py",))


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [("", 0), ("killed", 0), ("killed left", 0), ("left left", 1), ("killed survived", 1)],
)
def test_what_was_not_tried_is_no_pass(outcomes, code) -> None:
    """Where the budget was spent before the first mutant, nothing is known of the guards."""
    made = mutants(SOURCE, "train.py", operators(()))
    results = tuple(result_of(m, o) for m, o in zip(made, outcomes.split(), strict=False))
    assert exit_code(Survey(script="train.py", results=results, seconds=1.0)) == code


def test_copies_of_a_killed_command_go(tmp_path, monkeypatch) -> None:
    """The next one removes them, and leaves alone those of commands that run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    gone, kept = (tmp_path / f"trainguard-mutate-{n}-x" for n in (ended.pid, os.getppid()))
    for folder in (gone, kept):
        (folder / "copy").mkdir(parents=True)
    with scratch_folder() as own:
        assert sorted(tmp_path.iterdir()) == sorted((kept, tmp_path / own))
    assert [*tmp_path.iterdir()] == [kept]
