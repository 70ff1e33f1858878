"""`tg.Script` under `pytest --trainguard`: run once in a process of its own, judged like others."""

import re

import pytest

# pytester forgets what a run inside this process was the first to import.
import trainguard.observe.loop.observer
import trainguard.observe.loop.run_processes  # noqa: F401
from tests.forks import ends

TRAIN = """
import sys
import torch
from torch import nn
print("argv", sys.argv[1:], file=open("runs.txt", "a"))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
features = torch.randn(64, 8)
for step in range(30):
    if "--sum" not in sys.argv:
        optimizer.zero_grad()
    nn.functional.mse_loss(net(features), features.sum(1, keepdim=True)).backward()
    optimizer.step()
"""
SELECT = "--trainguard-select=loss_is_finite,gradients_start_empty,loss_falls"


@pytest.fixture
def declared(project):
    """Return a function that writes a guard file with scripts, and runs it."""
    project.pytester.makepyfile(train=TRAIN)

    def run(declarations: str, *options: str):
        """Declare scripts in `guard_x.py`, and judge them."""
        project.declare("guard_x", more=declarations)
        return project.run(SELECT, *options, profile="")

    return run


def runs(project) -> list[str]:
    """Return what each run of the script said of itself."""
    return (project.pytester.path / "runs.txt").read_text(encoding="utf-8").splitlines()


def test_a_healthy_script(project, declared) -> None:
    """All its invariants pass, and share one run with the declared arguments."""
    result = declared("train = tg.Script('train.py', args=['--lr', 3], steps=20)")
    result.assert_outcomes(passed=3)
    assert runs(project) == ["argv ['--lr', '3']"]
    result.stdout.fnmatch_lines("1 subject, 3 invariants: 3 passed")


def test_a_broken_script(declared) -> None:
    """The report names the script's own line, and the command that judges it again."""
    result = declared("summed = tg.Script('train.py', args=['--sum'])")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gradients_start_empty: `summed` steps with gradients that the last step had*",
            "  at        step 1, * train.py:13",
            "  rerun     pytest --trainguard guard_x.py::summed::gradients_start_empty",
            '  silence   tg.Script(..., allow={"gradients_start_empty": "<reason>"})',
        ]
    )


def test_selection(project, declared) -> None:
    """Items have their node ids, -k and --lf find them, and -n keeps them together."""
    summed = "summed = tg.Script('train.py', args=['--sum'])"
    result = declared(summed, "-k", "gradients_start_empty")
    result.assert_outcomes(failed=1, deselected=2)
    declared(summed, "--lf").assert_outcomes(failed=1, deselected=2)
    before = len(runs(project))
    result = project.pytester.runpytest_subprocess(
        "--trainguard", SELECT, "-n", "2", "--junitxml=out.xml"
    )
    result.assert_outcomes(passed=2, failed=1)
    assert len(runs(project)) == before + 1
    written = (project.pytester.path / "out.xml").read_text(encoding="utf-8")
    assert written.count('name="summed::') + written.count('name="gradients_start_empty"') >= 1
    assert ">gradients_start_empty: `summed` steps with" in written


def test_excuses(declared) -> None:
    """An excuse is an expected failure, a stale one a failure."""
    result = declared(
        "summed = tg.Script('train.py', args=['--sum'], allow={'gradients_start_empty': 'meant'})\n"
        "train = tg.Script('train.py', allow={'gradients_start_empty': 'once'})"
    )
    result.assert_outcomes(passed=4, xfailed=1, failed=1)


def test_where_a_script_is_looked_for(project) -> None:
    """First in the folder of the guard file, then where pytest was started."""
    pytester = project.pytester
    for folder in ("", "tests"):
        file = pytester.mkdir(folder) / "train.py" if folder else pytester.path / "train.py"
        file.write_text(TRAIN.replace('"argv"', repr(folder or "top")), encoding="utf-8")
    (pytester.path / "only.py").write_text(TRAIN, encoding="utf-8")
    guard = pytester.path / "tests" / "guard_x.py"
    guard.write_text(
        "import trainguard as tg\nnear = tg.Script('train.py')\nfar = tg.Script('only.py')\n",
        encoding="utf-8",
    )
    project.run(SELECT, profile="").assert_outcomes(passed=6)
    assert sorted(line.split()[0] for line in runs(project)) == ["argv", "tests"]


def test_where_a_script_runs(project, declared) -> None:
    """Where pytest was started, or in the folder that is declared; the script stays the same."""
    project.pytester.mkdir("data")
    declared("train = tg.Script('train.py', directory='data')").assert_outcomes(passed=3)
    assert (project.pytester.path / "data" / "runs.txt").is_file()
    result = declared("train = tg.Script('train.py', directory='no')")
    result.assert_outcomes(failed=1, skipped=2)
    result.stdout.fnmatch_lines("*could not be observed: there is no folder 'no' to run it in")


FAULTS = {
    "missing": (
        "tg.Script('nothing.py')",
        ["*: `x` could not be observed: there is no script 'nothing.py' in *"],
    ),
    "raises": (
        "tg.Script('raises.py', args=['--lr', '1'])",
        [
            "*: `x` could not be observed: it failed: LookupError: no data",
            "  at        guard_x.py:4",
            "  smallest  python raises.py --lr 1",
            "Stderr: ",
            "Traceback (most recent call last):",
            '  File "*raises.py", line 2, in <module>*',
            "LookupError: no data",
        ],
    ),
    "exits": (
        "tg.Script('exits.py')",
        ["*: `x` could not be observed: it failed: no data here", "Stderr: ", "no data here"],
    ),
    "idle": (
        "tg.Script('idle.py')",
        ["*: `x` could not be observed: `idle.py` made no training step, so that there is*"],
    ),
    "not python": (
        "tg.Script('notes.py')",
        ["*: `x` could not be observed: *notes.py is not Python: invalid syntax, line 1"],
    ),
    "hangs": (
        "tg.Script('hangs.py', timeout=4.0)",
        ["*: `x` could not be observed: it was still running after 4 seconds"],
    ),
    "dies": (
        "tg.Script('dies.py')",
        ["*: `x` could not be observed: it was ended by SIGKILL"],
    ),
}
SCRIPTS = {
    "raises": "import sys\nraise LookupError('no data')",
    "exits": "import sys\nsys.exit('no data here')",
    "idle": "import torch",
    "notes": "Dear reader, this is no Python.",
    "hangs": "import os, time\nos.fork()\nopen(f'{os.getpid()}.pid', 'w')\ntime.sleep(1000)",
    "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_script_that_cannot_be_observed(project, declared, fault) -> None:
    """Its fault is told whole by the first item, and the script is not run again for the others."""
    project.pytester.makepyfile(**SCRIPTS)
    declaration, told = FAULTS[fault]
    result = declared(f"x = {declaration}")
    result.assert_outcomes(failed=1, skipped=2)
    text = re.sub(r"\n {4,}(?=\S)", " ", result.stdout.str())  # long heads are wrapped
    pytest.LineMatcher(text.splitlines()).fnmatch_lines(told)
    assert text.count("could not be observed, for the reason shown at") == 1
    result.stdout.no_fnmatch_line("*launch.py*")
    for left in project.pytester.path.glob("*.pid"):
        assert ends(int(left.stem))


def test_promises(declared) -> None:
    """What is promised in the declaration is judged."""
    result = declared("train = tg.Script('train.py', falls=0.9999)")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines("loss_falls: *")


def test_the_settings_of_the_folder_do_not_matter(project, declared) -> None:
    """What `trainguard run` would read there is not what judges a declared script."""
    project.pytester.makefile(".toml", pyproject="[tool.trainguard]\nignore = ['loop.*']\n")
    declared("train = tg.Script('train.py')", "--trainguard-ignore=loss.*").assert_outcomes(
        passed=3
    )
