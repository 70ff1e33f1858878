"""--trainguard-select and --trainguard-ignore, alone and together."""

import pytest


def names(ids):
    """Return the invariants of some node ids."""
    return {line.rpartition("::")[2].partition("[")[0] for line in ids}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["value_is_finite"], {"value_is_finite"}),
        (["loss.value_is_finite"], {"value_is_finite"}),
        (["value_*,first_step_learns"], {"value_is_finite", "first_step_learns"}),
        (["value_*", "first_step_learns"], {"value_is_finite", "first_step_learns"}),
    ],
    ids=["name", "full name", "commas", "twice"],
)
def test_select(project, given, expected) -> None:
    """Only what a glob matches is judged; the option may be given more than once."""
    project.declare("guard_x", "mse", "warmup")
    ids = project.collected(*(f"--trainguard-select={globs}" for globs in given))
    assert names(ids) == expected


def test_select_a_family(project) -> None:
    """The name of a family with a star selects all of it, and says who is left without an item."""
    project.declare("guard_x", "mse", "warmup")
    ids = project.collected("--trainguard-select=schedule.*")
    assert ids
    assert all("::warmup::" in line for line in ids)
    result = project.run("--trainguard-select=schedule.*")
    result.stdout.fnmatch_lines("*empty*1 subject without an item: guard_x.py::mse")


def test_ignore(project) -> None:
    """What a glob of --trainguard-ignore matches is not judged."""
    project.declare("guard_x", "mse", "warmup")
    left = names(project.collected("--trainguard-ignore=loss.*"))
    assert "first_step_learns" in left
    assert "value_is_finite" not in left


def test_ignore_wins_over_select(project) -> None:
    """An invariant that is both selected and ignored is not judged."""
    project.declare("guard_x", "mse")
    options = ("--trainguard-select=value_*,gradient_is_finite", "--trainguard-ignore=gradient_*")
    assert names(project.collected(*options)) == {"value_is_finite"}
