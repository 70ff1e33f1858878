"""The hooks of a run with `--trainguard`: what pytest is told to do differently."""

import json
import random
import sys
import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainguard.core.catalogue import catalogue, check_globs
from trainguard.core.errors import DeclarationError
from trainguard.core.settings import DEVICES, LISTS, Settings, from_pyproject
from trainguard.pytest_plugin.collect import (
    SubjectCollector,
    is_guard,
    judge_function,
    raise_what_was_judged,
)
from trainguard.pytest_plugin.curve_snapshots import seat_curves
from trainguard.pytest_plugin.item_record import PROPERTY, SETTINGS, read_entry
from trainguard.pytest_plugin.passed_over import (
    PassedOver,
    describe_absent,
    describe_outside,
    find_outside,
)
from trainguard.pytest_plugin.session_files import FILES, open_files
from trainguard.report.session_summary import SessionSummary
from trainguard.subjects.subject import Subject

_PLUGIN = str(Path(__file__).parent)


class Judging:
    """Collects subjects, judges them and adds up what became of them."""

    def __init__(self, config: pytest.Config) -> None:
        try:
            self.settings = read_settings(config)
            self.files = open_files(config, strict=self.settings.strict)
        except DeclarationError as error:
            raise pytest.UsageError(str(error)) from None
        self.config = config
        self.summary = SessionSummary()
        self.passed_over = PassedOver()
        self.reason = ""  # why nothing was judged, or nothing on the devices that were named
        self.homes: dict[int, tuple[Subject, str]] = {}
        self.misdeclared: set[str] = set()
        self.told: list[str] = []  # of the files
        config.stash[SETTINGS] = self.settings
        config.stash[FILES] = self.files
        for device in DEVICES:
            config.addinivalue_line("markers", f"{device}: a subject judged on this device.")

    def pytest_report_header(self) -> str:
        """Say what a run depends on, so that it can be made again."""
        drawn = "" if self.settings.seed == 0 else f" (--hypothesis-seed={self.settings.seed})"
        return f"trainguard: profile {self.settings.profile}, seed {self.settings.seed}{drawn}"

    # Collection

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Collect guard files as modules, unless pytest does so by itself."""
        found = yield
        # DoctestModule is a Module too, and collects no subjects.
        taken = any(
            type(n).__name__ != "DoctestModule" for n in found if isinstance(n, pytest.Module)
        )
        if not taken and self._is_guard_file(file_path):
            hook = parent.ihook.pytest_pycollect_makemodule
            found.append(hook(module_path=file_path, parent=parent))
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> Sequence[pytest.Collector] | None:
        """Make a collector of a subject; leave a function under `@tg.guard` to pytest."""
        if is_guard(obj) and not collector.istestfunction(obj, name):
            raise DeclarationError(
                f"@tg.guard is on {name!r}, which pytest does not take for a test."
                f" Call it test_{name}."
            )
        if not issubclass(type(obj), Subject) or not isinstance(obj, Subject):
            return None
        if self._belongs_elsewhere(obj, collector.module, f"{collector.nodeid}::{name}"):
            return []
        self.passed_over.found.add(f"{collector.nodeid}::{name}")
        return [SubjectCollector.from_parent(collector, name=name, subject=obj)]

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Let `-m trainguard` select functions under `@tg.guard` too."""
        if _is_guard_item(item):
            item.add_marker("trainguard")
            self.passed_over.found.add(item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember subjects without an item, and whether declarations are all that is wrong."""
        if report.failed:
            self.summary.uncollected.add(report.nodeid)
        elif isinstance(report, pytest.CollectReport) and not report.result:
            self.summary.empty |= {n for _, n in self.homes.values() if n == report.nodeid}

    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any]
    ) -> None:
        """Remember which collectors failed because of a wrong declaration."""
        if call.excinfo is not None and isinstance(call.excinfo.value, DeclarationError):
            self.misdeclared.add(node.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Let the run go on where nothing but declarations stood in the way of collection."""
        if self.summary.uncollected and self.summary.uncollected <= self.misdeclared:
            self.config.option.continue_on_collection_errors = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tell syrupy which items have curves, before any is deselected."""
        seat_curves(self.config, items)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember the items that will not run."""
        self.passed_over.deselect(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the items that are to run."""
        seat_curves(self.config, session.items, selected=True)
        mine = [item for item in session.items if item.get_closest_marker("trainguard")]
        self.summary.collected |= {item.nodeid for item in mine}

    # Running

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Judge what a function under `@tg.guard` returns, once its fixtures are there."""
        if isinstance(item, pytest.Function):  # what an earlier try told is told no more
            item.user_properties[:] = [p for p in item.user_properties if p[0] != PROPERTY]
        yield
        if isinstance(item, pytest.Function) and _is_guard_item(item):
            judge_function(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Fail such a function with what was found, in place of calling it."""
        __tracebackhide__ = True
        if not _is_guard_item(pyfuncitem):
            return None
        raise_what_was_judged(pyfuncitem)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the verdicts out of the reports, which come from workers too; leave them as JSON."""
        told = [read_entry(value) for name, value in report.user_properties if name == PROPERTY]
        report.user_properties[:] = [
            (name, json.dumps(read_entry(value)) if name == PROPERTY else value)
            for name, value in report.user_properties
        ]
        if told and (report.when == "call" or (report.when == "setup" and not report.passed)):
            skipped = report.skipped and not hasattr(report, "wasxfail")
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            outcome = "skipped" if skipped else "error"
            self.summary.add(report.nodeid, told, outcome, why.removeprefix("Skipped: "))
            # Where it is declared, not where we say so; a skip of the user's own is left alone.
            if why and str(report.longrepr[0]).startswith(_PLUGIN):  # type: ignore[index]
                file, line, _ = report.location
                report.longrepr = (file, (line or 0) + 1, why)

    # With pytest-xdist

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker the seed, which may have been drawn."""
        node.workerinput["trainguard_seed"] = self.settings.seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the items of one subject on one worker, where xdist is free to choose."""
        if config.getoption("dist") != "load":
            return None
        from trainguard.pytest_plugin.xdist import SubjectScheduling

        return SubjectScheduling(config, log, {made.name for made in catalogue()})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Count the items that are to run; the controller collects none itself."""
        names = {made.name for made in catalogue()}
        mine = {i for i in ids if i.rpartition("::")[2].split("[")[0] in names}
        self.summary.collected |= mine

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand what a worker alone knows to its controller, which writes the files."""
        self.passed_over.refused |= session.exitstatus == pytest.ExitCode.USAGE_ERROR
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["trainguard"] = sorted(self.summary.empty)
            self.config.workeroutput["trainguard_files"] = self.files.send()
            self.config.workeroutput["trainguard_passed_over"] = self.passed_over.send()
        elif not self.config.getoption("collectonly"):
            self.told = self.files.write()
            self._settle_exit(session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take them over, where the worker lived to tell."""
        output = getattr(node, "workeroutput", {})
        self.summary.empty |= set(output.get("trainguard", ()))
        if "trainguard_files" in output:
            self.files.take(output["trainguard_files"])
            self.passed_over.take(output["trainguard_passed_over"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the closing section."""
        if self.config.getoption("collectonly"):
            return
        colour = {"green": True} if self.summary.well else {"yellow": True}
        terminalreporter.write_sep("=", "trainguard", **colour)
        if self.summary.collected or not self.reason:
            terminalreporter.write_line(self.summary.text(self.settings))
        if self.reason:
            terminalreporter.write_line(self.reason)
        for sentence in self.told:
            terminalreporter.write_line(f"trainguard: {sentence}")
        for line in self.files.printed():
            terminalreporter.write_line(line)

    def _settle_exit(self, session: pytest.Session) -> None:
        """Find why nothing was judged, and let no session pass that missed what it was to judge."""
        summary, code = self.summary, pytest.ExitCode.OK
        if summary.collected:
            self.reason = describe_absent(summary, self.settings)
            code = pytest.ExitCode.TESTS_FAILED if self.reason else code
        elif self.passed_over.deselected or not (summary.empty or summary.uncollected):
            self.reason = self.passed_over.why_none()
            outside = [] if self.reason else find_outside(self.config, self._is_guard_file)
            if outside:
                self.reason = describe_outside(outside, self.config.getini("testpaths"))
                code = pytest.ExitCode.NO_TESTS_COLLECTED
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = code

    # Where subjects are

    def _is_guard_file(self, path: Path) -> bool:
        """Say whether the name of a file, or its path from the root, matches one of the globs."""
        root = self.config.rootpath
        texts = [path.name]
        if path.is_relative_to(root):
            texts.append(path.relative_to(root).as_posix())
        return path.suffix == ".py" and any(
            fnmatchcase(text, glob) for text in texts for glob in self.settings.files
        )

    def _belongs_elsewhere(self, subject: Subject, module: ModuleType, nodeid: str) -> bool:
        """Say whether a subject is only imported here, or has a second name."""
        home = _module_of(subject.file)
        if home not in (None, module) and self._is_collected(Path(subject.file)):
            return any(value is subject for value in vars(home).values())
        return self.homes.setdefault(id(subject), (subject, nodeid))[1] != nodeid

    def _is_collected(self, path: Path) -> bool:
        """Say whether pytest would look for subjects in a file."""
        patterns = self.config.getini("python_files")
        return self._is_guard_file(path) or any(fnmatchcase(path.name, p) for p in patterns)


def read_settings(config: pytest.Config) -> Settings:
    """Read `[tool.trainguard]`, then the ini options, then the command line; the last one wins."""
    settings = from_pyproject(config.rootpath)
    told_elsewhere = ("seed", "bless")
    names = [c.name for c in fields(Settings) if c.name not in told_elsewhere]
    sources = {
        "The pytest configuration": {n: config.getini(f"trainguard_{n}") for n in names},
        "The command line": {n: config.getoption(f"trainguard_{n}") for n in names},
    }
    for source, values in sources.items():
        given = {name: value for name, value in values.items() if value is not None}
        for name in set(LISTS) & set(given):
            given[name] = [word for value in given[name] for word in value.split(",") if word]
        settings = settings.with_values(source, given)
    check_globs("select", settings.select)
    check_globs("ignore", settings.ignore)
    bless = bool(config.getoption("update_snapshots", False))  # of syrupy, where it is there
    return replace(settings, seed=_read_seed(config), bless=bless)


def _read_seed(config: pytest.Config) -> int:
    """Return Hypothesis's seed as a number; `random` draws one, which workers are told."""
    told: int | None = getattr(config, "workerinput", {}).get("trainguard_seed")
    if told is not None:
        return told
    given = config.getoption("hypothesis_seed", None)
    if given is None:
        return 0
    if given == "random":
        return random.SystemRandom().randrange(1 << 32)
    try:
        return int(given) % (1 << 32)
    except ValueError:  # Hypothesis takes any word
        return zlib.crc32(str(given).encode())


def _module_of(file: str) -> ModuleType | None:
    """Return the module that was imported from a file."""
    modules = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    return next((m for m in modules if vars(m).get("__file__") == file), None)


def _is_guard_item(item: pytest.Item) -> bool:
    """Say whether an item is a function under `@tg.guard`."""
    return isinstance(item, pytest.Function) and is_guard(item.function)
