"""Where trainguard is installed and not used, an ordinary pytest run pays nothing for it."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from trainguard.pytest_plugin import plugin

PROBE = """
import sys
import pytest

HEAVY = {"torch", "numpy", "hypothesis"}

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    loaded = HEAVY & set(sys.modules)
    ours = {name for name in sys.modules if name.split(".")[0] == "trainguard"}
    print("heavy:", sorted(loaded), "ours:", sorted(ours))
"""
PLAIN = "def test_plain():\n    pass\n"


@pytest.fixture(autouse=True)
def _no_other_plugin(monkeypatch) -> None:
    """Load no plugin but those named: others may import what they like."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester, *options) -> str:
    """Run pytest in a process of its own, and return what it imported."""
    pytester.makepyfile(probe=PROBE, test_plain=PLAIN)
    result = pytester.runpytest_subprocess("-p", "probe", *options)
    result.assert_outcomes(passed=1)
    (line,) = [line for line in result.outlines if line.startswith("heavy:")]
    return line


def test_an_ordinary_run_imports_nothing(pytester) -> None:
    """Neither torch, NumPy nor Hypothesis is imported, and of ours the plugin's module alone."""
    told = run(pytester, "-p", "trainguard.pytest_plugin.plugin")
    folder = "trainguard.pytest_plugin"
    assert told == f"heavy: [] ours: ['trainguard', '{folder}', '{folder}.plugin']"


def test_nor_where_guard_files_are(pytester) -> None:
    """A guard file changes nothing: an ordinary run does not look into it."""
    pytester.makepyfile(guard_x="import torch\nimport trainguard as tg\n")
    assert run(pytester, "-p", "trainguard.pytest_plugin.plugin").startswith("heavy: [] ")


@pytest.mark.parametrize("heavy", ["torch", "numpy", "hypothesis"])
def test_the_tests_above_can_fail(pytester, heavy) -> None:
    """A copy of the plugin with one import more is found out."""
    source = Path(plugin.__file__).read_text(encoding="utf-8")
    pytester.makepyfile(sabotaged=source.replace("import pytest\n", f"import pytest, {heavy}\n", 1))
    assert f"'{heavy}'" in run(pytester, "-p", "sabotaged")


def test_the_entry_point_is_the_plugin() -> None:
    """What pytest loads by itself is the module that is measured here."""
    (entry,) = [e for e in entry_points(group="pytest11") if e.name == "trainguard"]
    assert entry.value == "trainguard.pytest_plugin.plugin"
