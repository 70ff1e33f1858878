"""The layers of the package: who may import whom, read from the source."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import trainguard

PACKAGE = Path(trainguard.__file__).parent
# From the bottom up: a folder imports those before it, and none after it.
LAYERS = (
    "events",
    "core",
    "subjects",
    "curves",
    "invariants",
    "observe",
    "judging",
    "report",
    "api",
    "pytest_plugin",
    "command",
    "__init__",
    "__main__",
)
RANK = {name: rank for rank, name in enumerate(LAYERS)}
HALVES = {("observe", "invariants")}  # they meet in the trace alone
HOMES = {
    "torch": {"observe"},
    "numpy": {"observe"},
    "hypothesis": {"observe"},
    "pytest": {"pytest_plugin"},
    "_pytest": set(),
    "typer": {"command"},
    "syrupy": {"pytest_plugin"},
    "xdist": {"pytest_plugin"},
    "rich": {"command", "report"},
    # Names of modules in strings: the facade's, the catalogue's, and those that a team gives.
    "import_module": {"__init__", "core", "observe", "command"},
}


def part(module: str) -> str:
    """Return the layer member that a module belongs to: `observe.loss` is part of `observe`."""
    return module.partition(".")[0]


def module_name(package: Path, file: Path) -> str:
    """Return a file's dotted name below the package: `observe.loss`, `__init__`."""
    return ".".join(file.relative_to(package).with_suffix("").parts)


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the dotted name of everything that some nodes of a file import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Attribute) and node.attr == "import_module":
            yield node.attr
        elif isinstance(node, ast.Name) and node.id == "__import__":
            yield "import_module"


def objections(package: Path) -> Iterator[str]:
    """Yield one sentence for each import in the package that is against the layers."""
    at_once: dict[str, set[str]] = {}  # what a function imports late can close no cycle
    for file in sorted(package.rglob("*.py")):
        source = module_name(package, file)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        at_once[source] = {_own_module(package, name) for name in imported(tree.body)} - {""}
        if part(source) not in RANK:
            yield f"{source} stands in no layer"
            continue
        for name in imported(ast.walk(tree)):
            if target := _own_module(package, name):
                yield from _against_layers(source, target)
            yield from _away_from_home(source, name)
    try:
        TopologicalSorter(at_once).prepare()
    except CycleError as error:
        yield f"{' > '.join(error.args[1])} is a cycle"


def _own_module(package: Path, name: str) -> str:
    """Return the module of this package that an import reaches, or nothing for another's."""
    if part(name) != "trainguard":
        return ""
    inner = name.removeprefix("trainguard").removeprefix(".")
    place = package / inner.replace(".", "/")
    is_module = inner and (place.with_suffix(".py").is_file() or place.is_dir())
    return inner if is_module else inner.rpartition(".")[0] or "__init__"


def _against_layers(source: str, target: str) -> Iterator[str]:
    """Object to an import that points up, and to an observer that knows a judgement."""
    here, there = part(source), part(target)
    if (here, there) in HALVES:
        yield f"{source} imports {target}: they meet in the trace"
    elif RANK.get(there, len(LAYERS)) > RANK[here]:
        yield f"{source} imports {target}, which stands above it"


def _away_from_home(source: str, name: str) -> Iterator[str]:
    """Object to an import of a library outside the part of the package that it belongs to."""
    for library, homes in HOMES.items():
        if library in (part(name), name.rpartition(".")[2]) and part(source) not in homes:
            yield f"{source} imports {library}"


def test_imports_point_down() -> None:
    """No module imports a layer above it, the other half, or a library that has another home."""
    assert list(objections(PACKAGE)) == []


@pytest.mark.parametrize(
    ("file", "line", "objection"),
    [
        ("events/trace.py", "from trainguard.report.text import x", "which stands above it"),
        ("subjects/loss.py", "from trainguard import judging", "which stands above it"),
        ("judging/judge.py", "import trainguard.command.run", "which stands above it"),
        ("judging/judge.py", "def late():\n    from trainguard.command import run", "above it"),
        ("observe/loss.py", "from trainguard.invariants.loss import x", "meet in the trace"),
        ("invariants/loss.py", "import trainguard.observe.loss", "which stands above it"),
        ("report/text.py", "def late():\n    import torch", "report.text imports torch"),
        ("invariants/loss.py", "from numpy.linalg import norm", "imports numpy"),
        ("judging/judge.py", "import hypothesis.strategies as st", "imports hypothesis"),
        ("command/run.py", "from _pytest.config import Config", "imports _pytest"),
        ("report/text.py", "from importlib import import_module", "imports import_module"),
        ("events/trace.py", "importlib.import_module('torch')", "imports import_module"),
        ("events/trace.py", "__import__('torch')", "imports import_module"),
        ("novelty.py", "", "novelty stands in no layer"),
        ("subjects/subject.py", "from trainguard.subjects import loss", "is a cycle"),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, file: str, line: str, objection: str) -> None:
    """The test above can fail: each kind of bad import, planted in a small tree, is named."""
    for name in LAYERS[:-2]:
        (tmp_path / name).mkdir()
    for name in ("report/text.py", "judging/judge.py", "command/run.py", "events/trace.py"):
        (tmp_path / name).touch()
    for name in ("observe/loss.py", "invariants/loss.py", "subjects/subject.py"):
        (tmp_path / name).touch()
    (tmp_path / "subjects/loss.py").write_text("from trainguard.subjects import subject\n")
    assert list(objections(tmp_path)) == []

    with (tmp_path / file).open("a") as module:
        module.write(line)

    found = list(objections(tmp_path))
    assert len(found) == 1
    assert objection in found[0]
