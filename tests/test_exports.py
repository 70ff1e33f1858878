"""The facade: what `import trainguard as tg` offers, and what it does not load."""

import ast
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trainguard

HEAVY = ("torch", "numpy", "hypothesis", "pytest", "rich", "typer")
MODULES = (
    *("core.catalogue", "core.settings", "judging.judge", "observe.log.entry", "report.text"),
    *("subjects.domain", "subjects.loss", "subjects.schedule", "subjects.subject"),
)
INVARIANTS = ("invariants.loss", "invariants.schedule")


def loaded_by(statement: str) -> set[str]:
    """Return which heavy libraries a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*(set({HEAVY}) & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize("name", trainguard.__all__)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    """Every public name resolves to something with a docstring, and is listed by dir()."""
    value = getattr(trainguard, name)
    assert inspect.getdoc(value)
    assert name in dir(trainguard)


def test_the_facade_is_complete_and_sorted() -> None:
    """`__all__` is sorted, and holds exactly the names that type checkers see."""
    tree = ast.parse(Path(trainguard.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == trainguard.__all__


def test_no_module_bears_a_public_name() -> None:
    """Importing a submodule can therefore not replace a public function by the module."""
    modules = {file.stem for file in Path(trainguard.__file__).parent.glob("*.py")}
    assert not modules & set(trainguard.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A wrong name fails as it does in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Los'"):
        trainguard.Los  # noqa: B018


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in (*MODULES, *INVARIANTS))])
def test_the_package_loads_nothing_heavy(module: str) -> None:
    """The facade, the declarations, the judgements and the report load no heavy library."""
    assert loaded_by(f"import trainguard{module}") == set()


def test_all_public_names_load_nothing_heavy() -> None:
    """Resolving every public name loads no heavy library either."""
    assert loaded_by("from trainguard import *") == set()


def test_a_heavy_import_is_seen() -> None:
    """The two tests above can fail: a library that is loaded is named."""
    assert "numpy" in loaded_by("import numpy")


def test_the_plugin_module_loads_only_pytest() -> None:
    """Where the plugin is installed and not used, it costs one small module."""
    assert loaded_by("import trainguard.pytest_plugin.plugin") <= {"pytest"}


def test_the_version_is_the_installed_one() -> None:
    """`trainguard.__version__` is what the package's metadata says."""
    assert importlib.metadata.version("trainguard") == trainguard.__version__
