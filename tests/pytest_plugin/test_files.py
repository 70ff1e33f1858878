"""--trainguard-files."""

import pytest


@pytest.mark.parametrize("glob", ["checks.py", "ch*.py", "guards/*.py", "guards/inner/checks.py"])
def test_globs_match_names_and_paths(project, glob) -> None:
    """A glob is held against the name of a file and against its path from the root."""
    project.declare("checks", "warmup")
    folder = project.pytester.mkdir("guards")
    (folder / "inner").mkdir()
    (project.pytester.path / "checks.py").rename(folder / "inner" / "checks.py")
    ids = project.collected(f"--trainguard-files={glob}")
    assert "guards/inner/checks.py::warmup::first_step_learns" in ids


def test_the_default_gives_way(project) -> None:
    """With the option, guard_*.py is collected only where it is named too."""
    project.declare("guard_x", "warmup")
    project.declare("checks", "mse")
    assert not [
        line for line in project.collected("--trainguard-files=checks.py") if "guard_x" in line
    ]
    both = project.collected("--trainguard-files=checks.py,guard_*.py")
    assert {line.partition("::")[0] for line in both} == {"checks.py", "guard_x.py"}


def test_collect_ignore_is_respected(project) -> None:
    """What a conftest.py ignores is no guard file."""
    project.declare("guard_x", "warmup")
    project.pytester.makeconftest("collect_ignore = ['guard_x.py']")
    assert project.collected() == []
