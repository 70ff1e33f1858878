"""[tool.trainguard], the ini options and the command line: one source, and what each refuses."""

import pytest


def names(ids):
    """Return the invariants of some node ids."""
    return {line.rpartition("::")[2].partition("[")[0] for line in ids}


TABLE = "[tool.trainguard]\nselect = ['value_is_finite']\n"
INI = "trainguard_select = gradient_is_finite\n"


def test_pyproject(project) -> None:
    """The table of pyproject.toml in the root directory is read."""
    project.declare("guard_x", "mse")
    project.pytester.makepyprojecttoml(TABLE)
    assert names(project.collected()) == {"value_is_finite"}


def test_ini_wins_over_pyproject(project) -> None:
    """An ini option of the same name wins."""
    project.declare("guard_x", "mse")
    project.pytester.makepyprojecttoml(TABLE)
    project.pytester.makeini(f"[pytest]\n{INI}")
    assert names(project.collected()) == {"gradient_is_finite"}


def test_the_command_line_wins_over_all(project) -> None:
    """An option of the command line wins over both."""
    project.declare("guard_x", "mse")
    project.pytester.makepyprojecttoml(f"{TABLE}[tool.pytest.ini_options]\n{TOML_INI}")
    ids = project.collected("--trainguard-select=gradient_is_bounded")
    assert names(ids) == {"gradient_is_bounded"}
    assert names(project.collected()) == {"gradient_is_finite"}


TOML_INI = "trainguard_select = ['gradient_is_finite']\n"


@pytest.mark.parametrize(
    "line",
    [
        "trainguard_files = checks.py, more_*.py",
        "trainguard_ignore = loss.*",
        "trainguard_strict = true",
        "trainguard_profile = thorough",
        "trainguard_devices = cpu",
        "trainguard_dtypes = float32 bfloat16",
    ],
)
def test_every_setting_is_an_ini_option(project, line) -> None:
    """Every setting has its ini twin, known to --strict-config."""
    project.pytester.makeini(f"[pytest]\n{line}\n")
    project.declare("checks", "warmup")
    result = project.run("--strict-config", profile="")
    result.stderr.no_fnmatch_line("*ERROR*")
    assert ("no subject" in result.stdout.str()) == ("files" not in line)


BAD = {
    "--trainguard-profile=quik": ("The command line has profile='quik'. Did you mean 'quick'?"),
    "--trainguard-devices=cdua": "The command line has devices='cdua'. Did you mean 'cuda'?",
    "--trainguard-devices=gpu": "The command line has devices='gpu'. Did you mean 'cuda'?",
    "--trainguard-dtypes=float23": "The command line has dtypes='float23'. Did you mean 'float32'?",
    "--trainguard-select=value_is_finit": (
        "select='value_is_finit' matches no invariant. Did you mean 'value_is_finite'?"
    ),
    "--trainguard-ignore=los.*": (
        "ignore='los.*' matches no invariant. `trainguard list` shows them all."
    ),
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_option_is_one_sentence(project, option) -> None:
    """A value that cannot be meant ends the run as a wrong usage, with a hint and no traceback."""
    project.declare("guard_x", "mse")
    result = project.run(option, profile="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [f"ERROR: {BAD[option]}"]


BAD_TABLES = {
    "profil = 'quick'": "[tool.trainguard] has no setting 'profil'. Did you mean 'profile'?",
    "profile = 3": "[tool.trainguard] has profile=3. Known: ci, quick, thorough.",
    "strict = 'yes'": "[tool.trainguard] has strict='yes'. Write true or false.",
    "devices = [1]": "[tool.trainguard] has devices=[1]. Write a list of strings.",
    "dtypes = 'float33'": "[tool.trainguard] has dtypes='float33'. Did you mean 'float32'?",
    "seed = 3": "[tool.trainguard] has no setting 'seed'.*",
}


@pytest.mark.parametrize("line", BAD_TABLES)
def test_a_bad_table_is_one_sentence(project, line) -> None:
    """The same holds for what stands in pyproject.toml."""
    project.pytester.makepyprojecttoml(f"[tool.trainguard]\n{line}\n")
    result = project.run(profile="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: {BAD_TABLES[line]}".replace("[", "[[]"))
    result.stderr.no_fnmatch_line("*Traceback*")


def test_a_table_that_is_none(project) -> None:
    """A value where the table should be is refused."""
    project.pytester.makepyprojecttoml("[tool]\ntrainguard = 3\n")
    result = project.run(profile="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*has tool.trainguard=3. Write a table of settings.")


def test_a_bad_ini_value(project) -> None:
    """The same holds for an ini option."""
    project.pytester.makeini("[pytest]\ntrainguard_profile = slow\n")
    result = project.run(profile="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*The pytest configuration has profile='slow'. Known: ci,*")


def test_a_bad_setting_does_not_matter_without_the_switch(project) -> None:
    """An ordinary run reads no settings of ours."""
    project.pytester.makepyprojecttoml("[tool.trainguard]\nprofile = 3\n")
    project.pytester.makepyfile(test_x="def test_plain(): pass")
    project.pytester.runpytest_inprocess().assert_outcomes(passed=1)
