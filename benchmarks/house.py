"""
The figures of the house: how large the package is, and how well it can be read.

    python -m benchmarks.house

Counted on the source alone, typing imports included; nothing of the package is imported.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path(__file__).parents[1] / "trainguard"
# Forms that can be read as a participle: a function should have a verb.
IRREGULAR = frozenset(
    (
        *("built", "drawn", "found", "given", "gone", "held", "kept", "known", "left", "made"),
        *("met", "said", "seen", "sent", "shown", "taken", "told", "written"),
    )
)
VERBS = frozenset(("embed", "exceed", "proceed", "string", "swing", "bring", "spring"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse_package(package: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its dotted name below the package."""
    files = sorted(package.rglob("*.py"))
    return {
        ".".join(file.relative_to(package).with_suffix("").parts): ast.parse(file.read_bytes())
        for file in files
    }


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions and methods of a module, inner ones too."""
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def count_lines(function: Function) -> int:
    """Return how many lines a function has, its decorators apart."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def find_arrows(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Return who imports whom among the folders of depth 1."""
    arrows = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainguard."):
                arrows.add((name.partition(".")[0], str(node.module).split(".")[1]))
    folders = {name.partition(".")[0] for name in trees if "." in name}
    return {(source, target) for source, target in arrows if source != target and source in folders}


def find_circle(arrows: set[tuple[str, str]]) -> str:
    """Return one circle of folders that import each other, or `none`."""
    below = defaultdict(set)
    for source, target in arrows:
        below[source].add(target)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return " > ".join(error.args[1])
    return "none"


def is_participle(name: str) -> bool:
    """Say whether a function is named by one word that is a participle: `told`, `_seen`."""
    word = name.strip("_")
    if "_" in word or word in VERBS:
        return False
    return word in IRREGULAR or (word.endswith(("ed", "ing")) and len(word) > len("seed"))


def find_called_once(trees: dict[str, ast.Module]) -> list[str]:
    """Return the private functions and methods that one place of their module mentions."""
    once = []
    for name, tree in trees.items():
        mentions = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        once += [
            f"{name}.{function.name}"
            for function in functions_of(tree)
            if function.name.startswith("_") and not function.name.endswith("__")
            if mentions[function.name] == 1
        ]
    return once


def measure_house(package: Path) -> dict[str, str]:
    """Return every figure under its name."""
    trees = parse_package(package)
    functions = [function for tree in trees.values() for function in functions_of(tree)]
    lengths = [count_lines(function) for function in functions]
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    twice = sorted(name for name, count in classes.items() if count > 1)
    participles = sorted({f.name for f in functions if is_participle(f.name)})
    arrows, once = find_arrows(trees), find_called_once(trees)
    return {
        "files": str(len(trees)),
        "modules in the root": str(sum("." not in name for name in trees)),
        "arrows between folders": str(len(arrows)),
        "circle of folders": find_circle(arrows),
        "class names with two meanings": f"{len(twice)} {' '.join(twice)}".strip(),
        "functions named by a participle": f"{len(participles)} {' '.join(participles)}".strip(),
        "private functions called once": f"{len(once)} of {len(functions)},"
        f" {100 * len(once) / len(functions):.0f} %",
        "lines": str(sum(file.read_bytes().count(b"\n") for file in package.rglob("*.py"))),
        "lines of a function": f"median {median(lengths):.0f}, p90"
        f" {quantiles(lengths, n=10)[-1]:.0f}, longest {max(lengths)}",
    }


if __name__ == "__main__":
    for figure, value in measure_house(PACKAGE).items():
        print(f"{figure:34}{value}")
