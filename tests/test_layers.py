"""The layers of the package: who may import whom, read from the source."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import trainguard

PACKAGE = Path(trainguard.__file__).parent
# From the bottom up; a folder stands for all its modules. Imports point down, or stay in a layer.
LAYERS = (
    (
        "batch",
        "breakdown",
        "curve",
        "event",
        "exits",
        "fault",
        "finding",
        "kept",
        "saved",
        "step",
        "trace",
    ),
    ("column", "departure", "spread"),
    (
        "archive",
        "budget",
        "budgeted",
        "bytes",
        "catalogue",
        "checkpoint",
        "configuration",
        "domain",
        "factory",
        "forward",
        "loader",
        "loop",
        "loss",
        "model",
        "power",
        "schedule",
        "settings",
        "sizes",
        "subject",
    ),
    ("invariants", "observe"),
    ("report",),
    ("judge",),
    (
        "__init__",
        "__main__",
        "account",
        "body",
        "change",
        "cli",
        "collect",
        "compare",
        "comparison",
        "digest",
        "distribute",
        "document",
        "ending",
        "fixtures",
        "guarded",
        "keeping",
        "launch",
        "memory",
        "overlay",
        "picture",
        "plugin",
        "progress",
        "recording",
        "session",
        "side",
        "snapshot",
        "summary",
    ),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HALVES = {"invariants", "observe"}  # meet in the trace, and are loaded by name only
HOMES = {
    "torch": {"observe"},
    "numpy": {"observe"},
    "hypothesis": {"observe"},
    "pytest": {
        "account",
        "collect",
        "distribute",
        "fixtures",
        "guarded",
        "keeping",
        "plugin",
        "session",
        "snapshot",
    },
    "_pytest": set(),
    "typer": {"cli", "ending", "memory"},
    "syrupy": {"snapshot"},
    "xdist": {"distribute"},
    "rich": {"memory"},
    # The one way to reach the two halves.
    "import_module": {
        "__init__",
        "body",
        "catalogue",
        "judge",
        "launch",
        "memory",
        "observe",
        "recording",
        "side",
    },
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
    is_module = (package / inner.replace(".", "/")).with_suffix(".py").is_file()
    return inner if is_module else inner.rpartition(".")[0] or "__init__"


def _against_layers(source: str, target: str) -> Iterator[str]:
    """Object to an import that points up, and to one that reaches into a half of the package."""
    here, there = part(source), part(target)
    if there in HALVES and here != there:
        yield f"{source} imports {target}, which is loaded by name only"
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
        ("trace.py", "from trainguard.report import render", "which stands above it"),
        ("loss.py", "from trainguard import judge", "loss imports judge, which stands above it"),
        ("judge.py", "import trainguard.plugin", "which stands above it"),
        ("observe/loss.py", "from trainguard.invariants.loss import x", "loaded by name only"),
        ("invariants/loss.py", "import trainguard.observe.loss", "loaded by name only"),
        ("judge.py", "from trainguard.observe import loss", "loaded by name only"),
        ("report.py", "def late():\n    import torch", "report imports torch"),
        ("invariants/loss.py", "from numpy.linalg import norm", "imports numpy"),
        ("judge.py", "import hypothesis.strategies as st", "judge imports hypothesis"),
        ("plugin.py", "from _pytest.config import Config", "plugin imports _pytest"),
        ("report.py", "from importlib import import_module", "report imports import_module"),
        ("trace.py", "importlib.import_module('torch')", "trace imports import_module"),
        ("trace.py", "__import__('torch')", "trace imports import_module"),
        ("novelty.py", "", "novelty stands in no layer"),
        ("subject.py", "from trainguard import loss", "is a cycle"),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, file: str, line: str, objection: str) -> None:
    """The test above can fail: each kind of bad import, planted in a small tree, is named."""
    for name in ("report.py", "judge.py", "plugin.py", "observe/loss.py", "invariants/loss.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loss.py").write_text("from trainguard import subject\n")
    (tmp_path / "subject.py").touch()
    assert list(objections(tmp_path)) == []

    with (tmp_path / file).open("a") as module:
        module.write(line)

    found = list(objections(tmp_path))
    assert len(found) == 1
    assert objection in found[0]
