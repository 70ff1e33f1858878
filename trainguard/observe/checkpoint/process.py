"""
Run something in a process of its own, to its end or until it is killed.

A child is forked where that is safe: it has what the parent has imported, and anything can be
handed to it. Where there is an accelerator, or where there is no fork, a new interpreter is
started; what is handed to it must then be something that pickle can name.
"""

import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import format_exception

import torch

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.observe.loop.watchers import watchers
from trainguard.observe.tools.child_process import end_child, fork_child, forks

_TAIL = 8_192  # bytes of what a child printed that are shown
_POLL = (0.002, 0.05)  # seconds between two looks at a child, at first and at most


class Printed(Exception):
    """Carries the end of what a run printed, where a report shows what it raised."""

    # So that it is shown as `Printed: ...`, without the module that nobody asked for.
    __module__ = "builtins"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code, below zero that of a signal, and what it printed."""

    code: int
    printed: str

    @property
    def cause(self) -> Printed:
        """What it printed, as the cause of a fault."""
        return Printed(f"\n{self.printed}")


def apart(work: Callable[[], object], folder: Path, seconds: float) -> Ending:
    """
    Run `work` in a process of its own and wait for its end; all that it started ends with it.

    Raises SubjectError where it takes longer than `seconds`.
    """
    log = folder / "printed.txt"
    log.unlink(missing_ok=True)
    start = _fork if forks() else _spawn
    process = start(work, log)
    try:
        code = _wait(process, seconds)
    finally:
        end_child(process)
    printed = log.read_bytes()[-_TAIL:].decode(errors="replace") if log.exists() else ""
    return Ending(code, printed.rstrip())


def _fork(work: Callable[[], object], log: Path) -> int:
    """Start a child of this process, of one thread; it never comes back from here."""
    import_module("torch._dynamo")  # as the first optimizer would, in each child: two seconds
    watchers()  # imports what each child would import

    def begin() -> int:
        """Be the child."""
        torch.set_num_threads(1)  # a parallel region hangs without the threads that are not forked
        return _child(work, log)

    return fork_child(begin)


def _spawn(work: Callable[[], object], log: Path) -> int:
    """Start a new interpreter with what pickle can hand to it; raises Unjudged for the rest."""
    try:
        packed = pickle.dumps(work)
    except Exception as error:  # noqa: BLE001 functions inside of functions raise various things
        raise Unjudged(
            f"a new process cannot be given this function: {error}. Define it at module level"
        ) from None
    modules = {
        name: file
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and name.encode() in packed
    }
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_run_spawned, args=(packed, modules, str(log)), daemon=False)
    child.start()
    assert child.pid is not None
    # It is waited for by its number: who asks multiprocessing would hear that it still runs.
    multiprocessing.process._children.discard(child)  # type: ignore[attr-defined] # noqa: SLF001
    return child.pid


def _run_spawned(packed: bytes, modules: dict[str, str], log: str) -> None:
    """Be the new interpreter: import what is needed by name, or else from its file, and work."""
    for name, file in modules.items():
        try:
            import_module(name)
        except ImportError:
            spec = spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
    work = pickle.loads(packed)  # noqa: S301 it comes from us
    os._exit(_child(work, Path(log)))


def _child(work: Callable[[], object], log: Path) -> int:
    """Be the child: a group and an output of its own; return the exit code."""
    try:
        if hasattr(os, "setsid"):
            os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, target in ((0, nothing), (1, output), (2, output)):
            os.dup2(target, stream)
        modes = enumerate(("r", "w", "w"))
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(stream, mode, closefd=False) for stream, mode in modes
        )
        work()
    except BaseException as error:  # noqa: BLE001 the process ends here, whatever it is
        sys.stderr.write("".join(format_exception(error)))
        return 1
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def _wait(process: int, seconds: float) -> int:
    """Wait for the end of a child and return its exit code, below zero that of a signal."""
    until, pause = time.monotonic() + seconds, _POLL[0]
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            raise SubjectError(
                f"it was still running after {seconds:g} seconds",
                "make it shorter with steps=<count>, or give it more time with timeout=<seconds>",
            )
        time.sleep(pause)
        pause = min(2 * pause, _POLL[1])
