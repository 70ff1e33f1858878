"""--trainguard-profile."""

import re


def points(result) -> int:
    """Return the number of points in the closing section."""
    found = re.search(r"([\d,]+) points explored", result.stdout.str())
    return int(found[1].replace(",", ""))


def test_ci_explores_more_than_quick(project) -> None:
    """The profile decides how many points are explored, and `ci` is the default."""
    project.declare("guard_x", "mse")
    chosen = "--trainguard-select=value_is_finite"
    quick = points(project.run(chosen, profile="quick"))
    default = points(project.run(chosen, profile=""))
    assert 0 < quick < default
    assert points(project.run(chosen, profile="ci")) == default


def test_points_are_counted_once(project) -> None:
    """Two invariants that share an observation do not count its points twice."""
    project.declare("guard_x", "mse")
    one = points(project.run("--trainguard-select=value_is_finite"))
    two = points(project.run("--trainguard-select=value_is_finite,gradient_is_finite"))
    assert one == two
