"""Pictures of curves that left their band: in a temporary folder, in JUnit's XML, in HTML."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pytest_plugin.curves import GUARD, TEST, Team, team  # noqa: F401 a fixture
from trainguard.pytest_plugin.curve_snapshots import extras_of

pytest.importorskip("matplotlib")

# What pytest-html does with a report, as far as it concerns us.
LISTENER = """
import pytest

class Html:
    def pytest_runtest_logreport(self, report):
        for extra in getattr(report, "extras", []):
            print(report.when, extra["name"], extra["format_type"], extra["content"][:5])

def pytest_configure(config):
    config.pluginmanager.register(Html(), "html")
"""


def is_png(file: str) -> bool:
    """Say whether a file is a picture."""
    return Path(file).read_bytes().startswith(b"\x89PNG\r\n")


def test_a_departure_is_drawn(team: Team) -> None:  # noqa: F811
    """Once for each curve, with its file in the report, in the XML and in the extras."""
    team.write(
        guard_a=GUARD, test_a=TEST.replace("(guard)", "(guard, tmp_path)"), conftest=LISTENER
    )
    team.judge("--snapshot-update").assert_outcomes(passed=2)
    team.edit("train.py", "rate=0.01", "rate=0.0101")
    result = team.judge("--junitxml=told.xml", "-s")
    result.assert_outcomes(failed=2)
    told = [line.split() for line in result.outlines if line.startswith("  picture")]
    files = [words[1] for words in told]
    assert [Path(file).name for file in files] == ["loss.png", "rate.png", "loss.png"]
    assert all(map(is_png, files))
    assert Path(files[2]).parent.name.startswith("test_train")  # the test's own folder
    suites = ElementTree.parse(team.pytester.path / "told.xml")
    named = [e.get("value") for e in suites.iter("property") if e.get("name") == "curve"]
    assert named == files
    extras = re.findall(r"call (\w+) image iVBOR", result.stdout.str())
    assert extras == ["loss", "rate", "loss"]


def test_nothing_is_drawn_where_all_is_well(team: Team) -> None:  # noqa: F811
    """Nor for a snapshot that is missing, of which there is nothing to compare with."""
    team.write(test_a=TEST)
    result = team.run("-v")
    assert "picture" not in result.stdout.str()


def test_a_picture_that_is_gone_is_left_out() -> None:
    """A report may be shown after its files were cleaned up."""
    report = pytest.TestReport(
        "a", ("a", 0, "a"), {}, "failed", None, "call", user_properties=[("curve", "/not/here.png")]
    )
    assert extras_of(report) == []
