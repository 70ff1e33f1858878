"""The command line: list, explain and --version, and what it must not import."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from trainguard import __version__
from trainguard.command.cli import app
from trainguard.core.catalogue import catalogue


def run(*arguments: str):
    """Run the command line in this process."""
    return CliRunner().invoke(app, arguments)


def test_list_names_every_invariant() -> None:
    """Each invariant has a line with its full name and what holds when all is well."""
    lines = run("list").output.splitlines()
    assert [line.split()[0] for line in lines] == [made.key for made in catalogue()]
    assert all(made.title in line for made, line in zip(catalogue(), lines, strict=True))


def test_list_takes_globs() -> None:
    """Globs narrow the list, as they do for --trainguard-select."""
    assert {line.split(".")[0] for line in run("list", "schedule.*").output.splitlines()} == {
        "schedule"
    }
    assert len(run("list", "value_is_finite", "first_*").output.splitlines()) == 2


def test_list_says_what_an_invariant_needs() -> None:
    """A promise that an invariant needs stands in its line."""
    (line,) = run("list", "loss.samples_do_not_mix").output.splitlines()
    assert line.endswith("[needs reduction]")


@pytest.mark.parametrize("name", ["gradient_is_finite", "loss.gradient_is_finite"])
def test_explain(name) -> None:
    """An explanation holds every section of the docstring, and how to excuse."""
    told = run("explain", name)
    assert told.exit_code == 0
    assert told.output.startswith("loss.gradient_is_finite\n")
    for word in ("Judges:", "Allows:", "Misses:", "Why:", "Source:", "Excuse:"):
        assert f"  {word}" in told.output


def test_explain_names_the_options_of_run() -> None:
    """What `trainguard run` judges can be excused and left out there; other families cannot."""
    line = "  In `trainguard run`: --allow loss_falls=REASON, --ignore loop.loss_falls."
    assert line in run("explain", "loss_falls").output.splitlines()
    assert "trainguard run" not in run("explain", "gradient_is_finite").output


def test_help_of_run() -> None:
    """Each option that the documentation names is there; what is for our own use is not shown."""
    told = run("run", "--help")
    assert told.exit_code == 0
    options = (
        "-m --steps --ranks --timeout --json --trace --format --live --fail-fast --events --select"
        " --ignore --allow --strict --no-probes --baseline --update-baseline"
    )
    promises = "-v, --verbose --what-if --batch --falls --average --frozen --trainable"
    assert {*options.split(), *promises.split(), "--help"} == {
        word for word in told.output.split() if word.startswith("-") and word != "-"
    }
    assert all(len(line) <= 100 for line in told.output.splitlines())


@pytest.mark.parametrize(
    ("begun", "offered"),
    [("explain gradient_is_fi", ["gradient_is_finite"]), ("run --format sa", ["sarif"])],
)
def test_a_shell_completes(begun, offered) -> None:
    """What a shell asks for is answered: names of invariants, formats."""
    words = f"trainguard {begun}"
    asked = {"_TRAINGUARD_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env = {**asked, "COMP_CWORD": str(len(words.split()) - 1)}
    told = CliRunner().invoke(app, prog_name="trainguard", env=env)
    assert told.output.split() == offered


WRONG = {
    ("explain", "gradient_is_finit"): "Did you mean 'gradient_is_finite'?",
    ("explain", "banana"): "No invariant is called 'banana'. `trainguard list` shows them all.\n",
    ("explain", "leak"): "Did you mean 'future_does_not_leak' or 'target_is_not_in_the_input'?",
    ("list", "los.*"): "GLOB='los.*' matches no invariant. `trainguard list` shows them all.",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_name(arguments) -> None:
    """A name that is none is one sentence and a hint, with the exit code of a wrong usage."""
    told = run(*arguments)
    assert told.exit_code == 2
    assert WRONG[arguments] in told.stderr
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("zero_grad", "gradient_norm_is_measured_before_zeroing"),
        ("loss.*", "gradient_is_finite"),
        ("rate", "rate_changes_smoothly"),
        ("los_fals", "loss_falls"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name, near) -> None:
    """A few names are offered, and where all are told: never all of them."""
    told = run("explain", name).stderr
    assert f"'{near}'" in told
    assert 1 <= told.count("'") // 2 - 1 <= 8
    assert told.endswith("? `trainguard list` shows them all.\n")


def test_an_earlier_name_leads_to_the_one_of_today() -> None:
    """What was renamed is told under its name of today, and nothing else is offered."""
    made, old = next((made, name) for made in catalogue() for name in made.was)
    assert f"It is {made.name!r} now." in run("explain", old).stderr


def test_version() -> None:
    """--version prints the version."""
    assert run("--version").output == f"trainguard {__version__}\n"


def test_it_does_not_import_torch() -> None:
    """The whole catalogue is listed without torch, NumPy or Hypothesis."""
    program = (
        "import sys\nfrom trainguard.command.cli import app\napp(['list'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'numpy', 'hypothesis') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.splitlines()[-1] == "[]"


def test_a_page_needs_its_library(monkeypatch) -> None:
    """It is said before the script is run, not after."""
    monkeypatch.setattr("trainguard.core.files.find_spec", lambda name: None)
    told = run("run", "--format", "html=out.html", "train.py")
    assert told.exit_code == 2
    assert told.stderr == (
        "--format html needs jinja2, which is not installed."
        " Install it: pip install 'trainguard[report]'.\n"
    )
