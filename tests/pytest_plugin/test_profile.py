"""--trainguard-profile."""

import re
from pathlib import Path

import pytest

# pytester forgets what a run inside this process was the first to import.
import trainguard.observe.loop.observer  # noqa: F401
from tests.torches import ATTENDS_TO_NOTHING

FIXTURES = Path(__file__).parents[2] / "fixtures"


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


@pytest.mark.skipif(not ATTENDS_TO_NOTHING, reason="this torch makes nan of such rows")
def test_thorough_tells_the_smallest_edit(project) -> None:
    """Edits of a step are drawn, until one token tells that padding matters."""
    fixture = FIXTURES / "broken" / "loop" / "guard_mask_upside_down.py"
    project.pytester.makepyfile(guard_x=fixture.read_text(encoding="utf-8"))
    result = project.run("--trainguard-select=padding_does_not_matter", profile="thorough")
    result.assert_outcomes(failed=1)
    told = r"smallest  with token \[\d+, \d+\], marked as padding, 1 instead of 0, the loss is"
    assert re.search(told, result.stdout.str())
