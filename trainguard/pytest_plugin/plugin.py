"""
The pytest plugin's entry point: options, and what an ordinary run sees of trainguard.

Every pytest run on a machine loads this module where trainguard is installed. It therefore imports
pytest and the standard library, and the rest of the package only once `--trainguard` is given.
"""

import sys
import traceback
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Final, Literal

import pytest

IniType = Literal["args", "string", "bool"]
# {setting: (type of its ini option, help)}; each is an option of the command line too.
OPTIONS: Final[dict[str, tuple[IniType, str]]] = {
    "select": ("args", "judge only the invariants that match one of these globs: 'loss.*'"),
    "ignore": ("args", "judge none of the invariants that match one of these globs"),
    "devices": ("args", "judge on these devices only: cpu, cuda, cuda:1, mps, xpu"),
    "dtypes": ("args", "judge in these dtypes only, where a subject declares them"),
    "files": ("args", "globs of guard files, by name or by path from the root: guard_*.py"),
    "profile": ("string", "how much is explored: quick, ci or thorough"),
    "strict": ("bool", "let notes fail too"),
}
# The same of what is read and written besides; these have no twin, for a run is asked for them.
FILES: Final[dict[str, dict[str, Any]]] = {
    "format": {
        "action": "append",
        "metavar": "FORMAT=FILE",
        "help": "write what was judged as text, json, github, sarif, junit, html or markdown",
    },
    "html": {"metavar": "FILE", "help": "write a page of what was judged, with curves of runs"},
    "baseline": {"metavar": "FILE", "help": "fail only for what is not in it; written where new"},
    "update-baseline": {"action": "store_true", "help": "write it anew, with what is found"},
}
_PACKAGE = str(Path(__file__).parents[1])
_BUDGET = "memory_budget(peak, ...): fail a test that holds more memory in tensors than this."
_MOST_LINES = 20  # of what a subject says: a page of a terminal, beside its traceback


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--trainguard`, its settings, and their ini twins, which all default to None."""
    group = parser.getgroup("trainguard", "judge declared losses and schedules")
    group.addoption("--trainguard", action="store_true", help="collect and judge subjects")
    for name, (kind, text) in OPTIONS.items():
        flag: dict[str, Any] = {"action": "append", "metavar": "GLOBS"}
        if kind == "string":
            flag = {"action": "store", "metavar": "NAME"}
        elif kind == "bool":
            flag = {"action": "store_const", "const": True}
        group.addoption(f"--trainguard-{name}", default=None, help=text, **flag)
        parser.addini(f"trainguard_{name}", text, type=kind, default=None)
    for name, given in FILES.items():
        group.addoption(f"--trainguard-{name}", **given)


def pytest_configure(config: pytest.Config) -> None:
    """Load the rest of the package with `--trainguard`; otherwise only count subjects."""
    config.addinivalue_line("markers", "trainguard: a subject judged by one invariant.")
    config.addinivalue_line("markers", _BUDGET)
    if hasattr(config.option, "ignore_file_extensions"):
        # Whoever else keeps snapshots with syrupy would take ours for files without an owner.
        others = config.option.ignore_file_extensions or []
        config.option.ignore_file_extensions = [*others, "curve", "memory"]
    if config.getoption("trainguard"):
        from trainguard.pytest_plugin.session import Judging

        config.pluginmanager.register(Judging(config), "trainguard-judging")
    else:
        config.pluginmanager.register(_SubjectCounter(config), "trainguard-unjudged")


@pytest.fixture
def guard(request: pytest.FixtureRequest) -> Any:
    """Judge what a with-block does: `with guard.record(): ...`, `with guard.budget(peak=...)`."""
    from trainguard.pytest_plugin.fixtures import Guard

    return Guard(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Hold a test under `@pytest.mark.memory_budget(peak="300 MiB")` to its budget."""
    __tracebackhide__ = True
    marker = pyfuncitem.get_closest_marker("memory_budget")
    held: Any = nullcontext()
    if marker is not None:
        from trainguard.pytest_plugin.fixtures import make_budget_block

        held = make_budget_block(pyfuncitem, marker)
    with held:
        returned = yield
    return returned


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what a test found to be broken as its report, without the traceback that led to it."""
    report = yield
    if report.when == "call" and "trainguard.curves.picture" in sys.modules:
        from trainguard.pytest_plugin.curve_snapshots import extras_of

        # What pytest-html shows; without it nobody looks at them.
        vars(report)["extras"] = [*getattr(report, "extras", []), *extras_of(report)]
    if type(item).__module__.startswith("trainguard."):
        report.sections = [(title, _shorten(text)) for title, text in report.sections]
    if "trainguard.api.check" not in sys.modules or report.passed:
        return report
    from trainguard.api.check import Broken
    from trainguard.core.errors import SubjectError

    error = call.excinfo.value if call.excinfo is not None else None
    if not isinstance(item, pytest.Function):
        return report
    if isinstance(error, Broken):
        report.longrepr = str(error)
    elif isinstance(error, SubjectError) and error.__cause__ is None:
        report.longrepr = f"{error.sentence}.\n{error.remedy}".rstrip()
    return report


def _shorten(text: str) -> str:
    """Return the last lines of what a subject has printed or logged in all calls of it."""
    lines = text.splitlines()
    left = len(lines) - _MOST_LINES
    return text if left <= 0 else "\n".join([f"... {left} lines before", *lines[left:]])


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[Any],
    report: pytest.CollectReport | pytest.TestReport,
) -> None:
    """Show a wrong declaration as its sentences and its place, without a traceback."""
    if "trainguard.core.errors" not in sys.modules or call.excinfo is None:
        return
    from trainguard.core.errors import DeclarationError

    if not isinstance(report, pytest.CollectReport):
        return
    if isinstance(call.excinfo.value, DeclarationError):
        where = _place(node, call.excinfo.tb)
        report.longrepr = f"{where}{call.excinfo.value}"


class _SubjectCounter:
    """Leaves subjects alone, and says in one line how many were left."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> list[pytest.Item] | None:
        """Collect nothing of a subject, nor of a function that makes one."""
        if isinstance(obj, FunctionType) and "__trainguard__" in vars(obj):
            self.left.add(f"{collector.nodeid}::{name}")
        elif _is_subject(obj):
            # By place: the same subject is often imported into several modules.
            self.left.add(f"{getattr(obj, 'file', '')}:{getattr(obj, 'line', 0)}")
        else:
            return None
        return []

    def pytest_sessionfinish(self) -> None:
        """Hand the count of a worker of pytest-xdist to its controller."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["trainguard"] = sorted(self.left)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker counted, where it lived to tell."""
        self.left |= set(getattr(node, "workeroutput", {}).get("trainguard", ()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many subjects were not judged, and how to judge them."""
        if self.left:
            subjects = "1 subject was" if len(self.left) == 1 else f"{len(self.left)} subjects were"
            terminalreporter.write_line(f"trainguard: {subjects} not judged, pass --trainguard")


def _is_subject(obj: object) -> bool:
    """Say whether an object is a declared subject, without importing what declares one."""
    if "trainguard.subjects.subject" not in sys.modules:
        return False
    from trainguard.subjects.subject import Subject

    return issubclass(type(obj), Subject)


def _place(node: pytest.Item | pytest.Collector, trace: TracebackType) -> str:
    """Return `file:line: ` of the declaration: of the subject, or of the last call not our own."""
    subject = getattr(node, "subject", None)
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(trace)]
    frames = [(file, line) for file, line in frames if not file.startswith((_PACKAGE, "<"))]
    if subject is not None:
        frames = [(subject.file, subject.line)]
    if not frames:
        return ""
    file, line = frames[-1]
    folder = node.config.invocation_params.dir
    path = Path(file)
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{line}: "
