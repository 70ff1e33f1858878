"""Call what a declared run calls: the function of a Loop, or a Script as its own main module."""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError, Unjudged, is_ours
from trainguard.observe.loop.run_processes import script_folder, script_path
from trainguard.observe.loop.run_script import execute, find_module, find_script
from trainguard.observe.tools.child_process import forks
from trainguard.subjects.loop import Loop, Run, Script


class Silence(io.TextIOBase):
    """A stream that forgets what is written: one that kept it would look like a leak."""

    def write(self, text: str) -> int:
        """Take a text and forget it."""
        return len(text)


def call_of(run: Run, at: Mapping[str, Any] | None = None) -> Callable[[], Any]:
    """
    Return what makes the whole run once it is called, in this process.

    at: arguments of a Loop on top of those that it declares.

    Raises SubjectError where there is no such script, Unjudged where it cannot have a process of
    its own.
    """
    if isinstance(run, Script):
        if not forks():
            raise Unjudged("the memory of a script is followed in a forked process: none here")
        return _script(run)
    assert isinstance(run, Loop)
    train, arguments = run.train, {**run.arguments, **(at or {})}
    return lambda: train(**arguments)


def run_silently(train: Callable[[], Any], told: Callable[[], str]) -> None:
    """Make a run silently; what it raises is the subject's own. told: how far it had come."""
    try:
        with silence():
            train()
    except SystemExit as leaving:
        raise SubjectError(f"it left with {leaving} {told()}") from leaving
    except SubjectError:
        raise
    except Exception as error:
        if is_ours(error):
            raise
        raise SubjectError(
            f"it raised {type(error).__name__} {told()}: {error}", "make it run by itself first"
        ) from error


@contextmanager
def silence() -> Iterator[None]:
    """Let nothing that is written get anywhere."""
    with redirect_stdout(Silence()), redirect_stderr(Silence()):
        yield


def _script(script: Script) -> Callable[[], None]:
    """Return what executes a script as `python path args...` would."""
    folder = script_folder(script)
    try:
        if script.module:
            sys.path.insert(0, "")  # which is replaced by the folder that the module is found from
            with chdir(folder):
                program = find_module(str(script.path), script.args)
        else:
            program = find_script(str(script_path(script)), script.args)
    except DeclarationError as error:
        raise SubjectError(str(error).rstrip(".")) from None

    def run() -> None:
        """Execute it where it is declared to run."""
        sys.path.insert(0, "")  # which `execute` puts the script's folder in the place of
        with chdir(folder):
            os.environ["PWD"] = str(folder)
            execute(program)

    return run
