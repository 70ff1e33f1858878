"""What a session passed over: guard files outside of testpaths, and what was deselected."""

import pytest

TESTPATHS = "[tool.pytest.ini_options]\ntestpaths = ['tests']\n"
PLAIN = "def test_plain(): pass"
REMEDY = "there, or run pytest --trainguard ."


@pytest.fixture
def app(project):
    """Return a project whose testpaths name a folder with an ordinary test alone."""
    project.pytester.makepyprojecttoml(TESTPATHS)
    write(project, "tests/test_plain.py", PLAIN)
    return project


def write(project, file, text="") -> None:
    """Write a file, and the folder that it is in."""
    path = project.pytester.path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_guard_file_outside_of_testpaths_is_named(app, workers) -> None:
    """Nothing was judged, and a job that only looks at the exit code learns of it."""
    app.declare("guard_app", "warmup")
    result = app.run(*workers)
    result.assert_outcomes(passed=1)
    told = "no subject was found: guard_app.py lies outside of testpaths = tests. Add its folder"
    assert f"{told} {REMEDY}" in result.outlines
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_of_many_files_outside_three_are_named(app) -> None:
    """The nearest to the root, and how many more."""
    for file in ("pkg/guard_d.py", "guard_a.py", "guard_b.py", "guard_c.py", "pkg/guard_e.py"):
        write(app, file)
    told = "guard_a.py, guard_b.py, guard_c.py and 2 more lie outside of testpaths = tests."
    assert f"no subject was found: {told} Add their folders {REMEDY}" in app.run().outlines


def test_what_pytest_would_not_collect_is_not_outside(app) -> None:
    """Hidden folders, environments, what is ignored, and what lies below testpaths itself."""
    (app.pytester.path / "pyproject.toml").write_text(
        f"{TESTPATHS}norecursedirs = ['data']\naddopts = ['--ignore=guard_old.py']\n", "utf-8"
    )
    write(app, "env/pyvenv.cfg")
    folders = (".tox", "env/lib", "node_modules/x", "data", "tests")
    for file in (*(f"{folder}/guard_x.py" for folder in folders), "guard_old.py"):
        write(app, file)
    result = app.run()
    result.stdout.no_fnmatch_line("*outside of testpaths*")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("arguments", [["tests"], ["."]], ids=" ".join)
def test_nothing_is_outside_of_what_was_asked_for(app, arguments) -> None:
    """Testpaths are in nobody's way where folders are named."""
    app.declare("guard_app", "warmup")
    result = app.run(*arguments)
    result.stdout.no_fnmatch_line("*outside of testpaths*")
    assert result.ret == pytest.ExitCode.OK


def test_a_subject_inside_is_enough(app) -> None:
    """Where a subject was found, testpaths are as they are meant."""
    app.declare("guard_app", "warmup")
    app.declare("tests/test_guarded", "warmup")
    result = app.run()
    result.stdout.no_fnmatch_line("*outside of testpaths*")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("chosen", [["-m", "cuda"], ["-k", "nothing"]], ids=" ".join)
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_subjects_that_were_deselected_were_found(project, chosen, workers) -> None:
    """Items and subjects are counted; a function that returns a subject is one of each."""
    project.declare("guard_x", "mse")
    project.declare("test_x", more="@tg.guard\ndef test_made():\n    return mse\n")
    options = ("--trainguard-select=value_is_finite,gradient_is_finite", "--trainguard-devices=cpu")
    result = project.run(*options, *chosen, *workers)
    assert "3 items of 2 subjects were deselected" in result.outlines
    result.stdout.no_fnmatch_line("*no subject was found*")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_one_item_that_was_deselected(project) -> None:
    """One item is one item."""
    project.declare("guard_x", "mse")
    result = project.run("--trainguard-select=gradient_is_bounded", "-k", "nothing", "-m", "cpu")
    assert "1 item of 1 subject was deselected" in result.outlines


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_name_that_is_not_there(project, workers) -> None:
    """Its file has subjects, and none of that name."""
    project.declare("guard_x", "mse", "warmup")
    result = project.run("guard_x.py::nope", *workers)
    told = "2 subjects were found, and none was judged: pytest refused its arguments"
    assert told in result.outlines
    result.stdout.no_fnmatch_line("*no subject was found*")
    assert result.ret != pytest.ExitCode.OK


def test_a_file_that_is_not_there(project) -> None:
    """Pytest looks no further, so that nothing is known of the files that are there."""
    project.declare("guard_x", "mse")
    result = project.run("guard_nope.py")
    assert "no subject was judged: pytest refused its arguments" in result.outlines
    assert result.ret == pytest.ExitCode.USAGE_ERROR
