"""What cannot be run or judged: one sentence on stderr, and exit 2."""

import pytest

MISSING = {
    "no/such.py": "There is no script 'no/such.py' in {here}.",
    "trian.py": "There is no script 'trian.py' in {here}. Did you mean 'train.py'?",
    "run.py": "There is no script 'run.py' in {here}.",
    "python": (
        "There is no script 'python' in {here}. Leave out 'python': `trainguard run` takes the"
        " script itself."
    ),
    ".": ". is a folder. Give the script in it.",
}


@pytest.mark.parametrize("script", MISSING)
def test_no_such_script(folder, script) -> None:
    """A script that is not there is one sentence, with the nearest that is."""
    done = folder.run(script, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == MISSING[script].replace("{here}", str(folder.path)) + "\n"


NOT_PYTHON = {
    "train.sh": (b"#!/bin/sh\npython train.py\n", "invalid syntax, line 2"),
    "model.pt": (b"PK\x03\x04\x00\x00", "null byte"),
    "latin.py": (b"name = '\xe9'\n", "decode"),
    "typing.src": (b"def f(:\n", "invalid syntax, line 1"),
}


@pytest.mark.parametrize("name", NOT_PYTHON)
def test_not_python(folder, name) -> None:
    """A file that is no Python is not run, and the line that shows it is named."""
    content, reason = NOT_PYTHON[name]
    (folder.path / name).write_bytes(content)
    done = folder.run(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name} is not Python: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_training_step(folder) -> None:
    """A script that trains nothing would pass everything: it is refused, output and all."""
    folder.write("idle.py", "import torch\nprint('only looking')\n")
    done = folder.run("--json", "out.json", "idle.py")
    assert done.returncode == 2
    assert done.stdout == "only looking\n"
    assert done.stderr == (
        "`idle.py` made no training step, so that there is nothing to judge.\n"
        "Steps in processes that it starts are not seen.\n"
    )
    document = folder.document()
    assert (document["findings"], document["judged"]) == ([], [])
    assert document["trace"]["steps"] == 0


def test_steps_that_are_never_made(folder) -> None:
    """What goes backward and moves nothing is told so: `optimizer.step` was not called."""
    folder.write(
        "still.py",
        "import torch\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    model(torch.randn(8, 3)).square().mean().backward()\n"
        "    optimizer.step\n",
    )
    done = folder.run("still.py")
    assert done.returncode == 2
    assert done.stderr == (
        "`still.py` made no training step, so that there is nothing to judge.\n"
        "Its 4 passes backward moved nothing: see that `optimizer.step()` is called, with its"
        " parentheses.\n"
    )


def test_a_script_that_fails_before_its_first_step(folder) -> None:
    """Its failure is what is told, not that it made no step."""
    folder.write("train.py", "raise LookupError('no data')\n")
    done = folder.run("train.py")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr == folder.python("train.py").stderr


WRONG = {
    ("--steps", "0"): "--steps 0 cannot be. Give a whole number >= 1.",
    ("--falls", "1.5"): "--falls 1.5 cannot be. Give a number in 0 to 1.",
    ("--timeout", "0"): "--timeout 0 leaves no time. Give a number of seconds.",
    ("--select", "los_falls"): (
        "select='los_falls' matches no invariant. Did you mean 'loss_falls'?"
    ),
    ("--select", "loss.*"): (
        "select=('loss.*',) and ignore=() leave no invariant of the family loop."
        " `trainguard list 'loop.*'` shows them all."
    ),
    ("--allow", "los_falls=x"): (
        "--allow los_falls names no loop invariant. Did you mean 'loss_falls'?"
    ),
    ("--allow", "loss_falls"): (
        "--allow loss_falls gives no reason. Say in a few words why it is so."
    ),
    ("--json", "no/out.json"): (
        "--json {here}/no/out.json: there is no folder {here}/no. Make it first."
    ),
    ("--trace", "."): "--trace {here} is a folder. Give the name of a file.",
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_a_wrong_option(folder, options) -> None:
    """It is refused with its sentence before anything is run."""
    folder.write("train.py", "raise SystemExit('was run')")
    done = folder.run(*options, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == WRONG[options].replace("{here}", str(folder.path)) + "\n"


@pytest.mark.parametrize("words", [["--stepps", "3", "train.py"], [], ["--steps", "x", "train.py"]])
def test_a_wrong_command_line(folder, words) -> None:
    """What the command line itself refuses is exit 2 too."""
    done = folder.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr


def test_wrong_settings(folder) -> None:
    """Settings of the working directory are checked before anything is run."""
    folder.write("pyproject.toml", "[tool.trainguard]\nstric = true\n")
    done = folder.run("train.py")
    assert done.returncode == 2
    assert done.stderr == "[tool.trainguard] has no setting 'stric'. Did you mean 'strict'?\n"


def test_an_excuse_of_what_only_a_second_run_shows(folder) -> None:
    """What `trainguard run` does not judge cannot be excused from it."""
    done = folder.run("--allow", "run_is_reproducible=it is not", "train.py")
    assert done.returncode == 2
    assert done.stderr == (
        "--allow run_is_reproducible excuses what `trainguard run` does not judge.\n"
    )
