"""One run of a version of a project in a process of its own, and whether two runs are the same."""

import hashlib
import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import monotonic
from typing import Any, Final
from xml.etree import ElementTree

from trainguard.command.exit import CLEAN, FAILED, FOUND, OURS, USAGE
from trainguard.command.mutate.project import Project
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.files import is_running
from trainguard.core.finding import Rank
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.report.text import WIDTH

HUNG: Final = -1  # in place of an exit code
_SCRATCH: Final = "trainguard-mutate-"  # and the number of the process
_REPORT: Final = " trainguard ".center(WIDTH, "=")
# What a step computes: not what it is called, in which mode or order, and how long it takes.
_COMPARED: Final = ("loss", "losses", "batch", "norm", "rates", "update", "weight")
_SILENT: Final = "-Wignore::pytest.PytestAssertRewriteWarning"  # for what the parent has imported


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """
    What became of one run.

    broken, noted: the invariants that `trainguard run` has findings of. said: what the script
    printed. files: checksums of the files that it wrote. modules: the files of the project that it
    imported, itself included. failed: what pytest says failed.
    """

    code: int
    seconds: float = 0.0
    printed: str = ""
    broken: frozenset[str] = frozenset()
    noted: frozenset[str] = frozenset()
    trace: Trace[Any] = field(default_factory=lambda: Trace(""))
    files: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    failed: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()

    @property
    def is_judged(self) -> bool:
        """Say whether it ran to its end, and was judged."""
        return self.code in (CLEAN, FOUND)

    @property
    def losses(self) -> list[str]:
        """Return the losses of all steps, to the last bit."""
        return [repr(step.loss) for step in self.steps]

    @property
    def steps(self) -> list[Step]:
        """Return the steps of the training."""
        return [event for event in self.trace if isinstance(event, Step)]

    @property
    def numbers(self) -> list[str]:
        """Return all numbers of all steps, as text."""
        return [repr([getattr(step, name) for name in _COMPARED]) for step in self.steps]

    @property
    def said(self) -> list[str]:
        """Return the lines that the script printed, without our report."""
        return self.printed.partition(_REPORT)[0].rstrip().splitlines()


def scratch_folder() -> TemporaryDirectory[str]:
    """Return a folder that is removed after use; those of commands that were killed go now."""
    for left in Path(gettempdir()).glob(f"{_SCRATCH}*"):
        if not is_running(left.name.removeprefix(_SCRATCH).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    return TemporaryDirectory(prefix=f"{_SCRATCH}{os.getpid()}-")


def try_training(
    project: Project, changes: dict[str, bytes], steps: int | None, seconds: float
) -> Trial:
    """Run a version of a project under `trainguard run`, in a copy of its own."""
    with scratch_folder() as scratch:
        found, trace = Path(scratch, "found.json"), Path(scratch, "trace")
        words = ["trainguard", "run", "--json", str(found), "--trace", str(trace)]
        words += [] if steps is None else ["--steps", str(steps)]
        made = _run(project, changes, [*words, *project.words], scratch, seconds)
        if not made.is_judged or not found.exists():
            return made
        findings = json.loads(found.read_text(encoding="utf-8"))["findings"]
        by_rank = {
            rank: frozenset(f["invariant"] for f in findings if f["rank"] == rank.value)
            for rank in Rank
        }
        return replace(
            made,
            broken=by_rank[Rank.BROKEN],
            noted=by_rank[Rank.NOTE],
            trace=Trace.from_text(trace.read_text(encoding="utf-8")),
        )


def try_guards(project: Project, changes: dict[str, bytes], seconds: float) -> Trial:
    """Run the team's own guards on a version of a project, in a copy of its own."""
    with scratch_folder() as scratch:
        report = Path(scratch, "junit.xml")
        words = ["pytest", "--trainguard", "-q", "-p", "no:cacheprovider", _SILENT]
        words += ["-o", "junit_family=xunit1", f"--junitxml={report}", *project.guards]
        made = _run(project, changes, words, scratch, seconds)
        if not report.exists():
            return made
        failed, passed = set[str](), set[str]()
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 our own child's
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            bad = any(case.find(what) is not None for what in ("failure", "error"))
            (failed if bad else passed).add(name)
        return replace(made, failed=frozenset(failed), passed=frozenset(passed))


def _run(
    project: Project, changes: dict[str, bytes], words: Sequence[str], scratch: str, seconds: float
) -> Trial:
    """Run `python -m words...` in a copy, and return how that ended."""
    from trainguard.observe.checkpoint.process import apart  # late: torch

    folder, beside = Path(scratch, project.root.name or "root"), Path(scratch, "beside")
    project.copy(folder, changes)
    beside.mkdir()
    before, began = _stamps(folder), monotonic()
    work = partial(_be, list(words), str(folder), project.paths(folder), str(beside))
    try:
        code = apart(work, beside, seconds).code
    except SubjectError:  # it is still running
        code = HUNG
    took = monotonic() - began
    written = [name for name, stamp in _stamps(folder).items() if before.get(name) != stamp]
    modules, log = beside / "modules.json", beside / "printed.txt"
    printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Trial(
        code=code,
        seconds=took,
        printed=printed,
        files={n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in written},
        modules=tuple(json.loads(modules.read_text())) if modules.exists() else (),
    )


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return when each file in a folder was written, and its size, by its path from there."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    stats = {str(file.relative_to(folder)): file.stat() for file in sorted(files)}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


def _be(words: list[str], folder: str, paths: list[str], beside: str) -> None:
    """Be the child: run a module as `python -m` does, and end with its exit code."""
    from trainguard.observe.tools.isolation import seed_everything  # late: torch

    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:] = [folder, *paths]
    sys.dont_write_bytecode = True
    seed_everything(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not that of the command
    sys.argv = words
    code: object = OURS
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = CLEAN
    except SystemExit as end:
        code = CLEAN if end.code is None else end.code
    finally:
        files = [getattr(m, "__file__", None) for m in [*sys.modules.values()]]
        own = {os.path.relpath(f, folder) for f in files if f and f.startswith(folder + os.sep)}
        Path(beside, "modules.json").write_text(json.dumps(sorted(own)), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script may have closed it
            stream.flush()
    os._exit(code if isinstance(code, int) else FAILED)


def check_judged(name: str, whole: Trial, budget: float) -> None:
    """Raise where the training as it is cannot be judged."""
    last = "".join(whole.printed.strip().splitlines()[-1:])
    if whole.code == HUNG:
        raise DeclarationError(
            f"{name} takes longer than the --budget of {budget:g} s as it is. Shorten it with"
            " --steps N, or give it more."
        )
    if whole.code == USAGE:
        raise DeclarationError(
            f"{name} cannot be judged as it is: {' '.join(whole.printed.split()[-40:])}"
        )
    if not whole.is_judged:
        raise DeclarationError(
            f"{name} fails as it is: {last}. Make it run by itself first; its arguments stand"
            f" behind two dashes: trainguard mutate {name} -- ARGS."
        )


def check_repeats(name: str, whole: Trial, again: Trial) -> None:
    """Raise where two runs of the same have different losses."""
    pairs = enumerate(zip(whole.losses, again.losses, strict=False))
    parted = next((step for step, (a, b) in pairs if a != b), None)
    if parted is None and len(whole.losses) == len(again.losses):
        return
    step = min(len(whole.losses), len(again.losses)) if parted is None else parted
    raise DeclarationError(
        f"{name} is not deterministic: two runs of it part at step {step}, so that no mutant could"
        " be told from chance. Seed what it draws from, or leave out its workers."
    )


def is_same(whole: Trial, again: Trial, found: Trial) -> bool:
    """
    Say whether a mutant did what the training does: its numbers, its words and its files.

    What differs between two runs of the same, such as the time of day, is not compared.
    """
    if not _alike(whole.numbers, again.numbers, found.numbers):
        return False
    if not _alike(whole.said, again.said, found.said):
        return False
    names = {*whole.files, *found.files}
    sure = [name for name in names if whole.files.get(name) == again.files.get(name)]
    return all(whole.files.get(name) == found.files.get(name) for name in sure)


def _alike(whole: list[str], again: list[str], found: list[str]) -> bool:
    """Say whether lines are the same, but for those that chance changes too."""
    if len(whole) != len(again):
        return True
    pairs = zip(whole, again, strict=True)
    noise = {place for place, (a, b) in enumerate(pairs) if a != b}
    kept = [line for place, line in enumerate(whole) if place not in noise]
    return kept == [line for place, line in enumerate(found) if place not in noise]
