"""House rules that no linter knows."""

import ast
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.house import PACKAGE, measure_house

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TREES = ("trainguard", "tests", "fixtures", "benchmarks", "docs")
SOURCES = [file for tree in TREES for file in sorted((ROOT / tree).rglob("*.py"))]
LONGEST = 400
# Components and scripts stand as their authors wrote them.
AS_WRITTEN = {ROOT / "fixtures", *(ROOT / "tests").glob("*/scripts")}
OWN = [file for file in SOURCES if not AS_WRITTEN & set(file.parents)]


def offenders(files: list[Path], find: Callable[[str], object]) -> dict[str, object]:
    """Return what is found in the text of files, by path, where anything is."""
    found = {file: find(file.read_text(encoding="utf-8")) for file in files}
    return {file.relative_to(ROOT).as_posix(): what for file, what in found.items() if what}


def test_sources_are_ascii() -> None:
    """Sources, and so the messages in them, print on any terminal."""
    assert offenders(SOURCES, lambda text: [x for x in text.splitlines() if not x.isascii()]) == {}


def test_files_are_short() -> None:
    """A file that outgrows its room is split by noun."""
    assert offenders(SOURCES, lambda text: max(0, text.count("\n") - LONGEST)) == {}


def test_the_figures_of_the_house_hold() -> None:
    """Folders stay few and in order, a class name occurs once, and functions have verbs."""
    figures = measure_house(PACKAGE)
    assert int(figures["arrows between folders"]) <= 40
    assert figures["circle of folders"] == "none"
    assert figures["class names with two meanings"] == "0"
    assert int(figures["functions named by a participle"].split()[0]) < 100


def test_every_function_says_what_it_does() -> None:
    """Private functions have a docstring too; components in fixtures/ stand as they were."""
    assert offenders(OWN, lambda text: [f.name for f in undocumented(ast.parse(text))]) == {}


def test_every_process_of_a_test_has_a_limit() -> None:
    """A test that waits for a process, on a machine that is not like ours, comes to an end."""
    tests = [file for file in OWN if file.is_relative_to(ROOT / "tests")]
    assert offenders(tests, lambda text: [*unlimited(ast.parse(text))]) == {}
    assert [*unlimited(ast.parse("p.communicate()\nsubprocess.run([])\nrun(timeout=1)"))] == [1, 2]


def unlimited(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that wait for a process, however long it takes."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name, given = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
            waits = name == "subprocess.run" or name.endswith(".communicate")
            if waits and not given & {"timeout", None}:
                yield call.lineno


def undocumented(tree: ast.AST) -> list[ast.FunctionDef]:
    """Return the functions of a module, methods included, that have no docstring."""
    functions = [
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.If)
        for child in node.body
        if isinstance(child, ast.FunctionDef)
    ]
    return [f for f in functions if f.name != "__init__" and not ast.get_docstring(f)]


def test_an_undocumented_function_is_found() -> None:
    """The test above can fail, on a function and on a method."""
    tree = ast.parse("def f(): ...\nclass C:\n    '''c'''\n    def m(self): ...\n")
    assert [f.name for f in undocumented(tree)] == ["f", "m"]


def test_minimums_are_the_declared_bounds() -> None:
    """constraints/minimums.txt pins each dependency but torch to its lower bound."""
    declared = dict(d.split(">=") for d in TABLE["project"]["dependencies"])
    pins = (ROOT / "constraints" / "minimums.txt").read_text(encoding="utf-8").splitlines()
    lowest = dict(pin.split("==") for pin in pins if not pin.startswith("#"))
    bounds = {name: bound for name, bound in declared.items() if name != "torch"}
    assert [n for n, low in bounds.items() if not lowest.get(n, "").startswith(low)] == []


def test_the_oldest_torch_of_the_matrix_is_the_declared_bound() -> None:
    """The lowest torch that is promised is one that the matrix runs."""
    (bound,) = (d.split(">=")[1] for d in TABLE["project"]["dependencies"] if d.startswith("torch"))
    assert f'TORCHES = ("{bound}",' in (ROOT / "noxfile.py").read_text(encoding="utf-8")


def test_the_workflow_runs_each_declared_python() -> None:
    """Each Python of the classifiers is one that CI asks for by name."""
    classifiers = TABLE["project"]["classifiers"]
    pythons = [c.rpartition(" ")[2] for c in classifiers if "Python :: 3." in c]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert f"python: {pythons}".replace("'", '"') in workflow


@pytest.mark.parametrize("session", ["guard", "tests"])
def test_the_two_commands_are_printed(session: str) -> None:
    """The README prints both commands on a line each, and CI runs the second one as printed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert f"python -m pip install nox && python -m nox -s {session}" in readme
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert session != "tests" or "\npython -m nox -s tests " in ci


def test_no_dependency_has_an_upper_bound() -> None:
    """An upper bound in a test tool would dictate the versions of the project under test."""
    assert [d for d in TABLE["project"]["dependencies"] if "<" in d or "==" in d] == []
