"""How a command ends: with what it raised told, and with the exit code that stands for it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import typer

from trainguard.command.output import say
from trainguard.command.ranks import tell_gone, world
from trainguard.core.errors import DeclarationError
from trainguard.report.text import render_crash, render_traceback

CLEAN = 0
FOUND = 1  # something is broken, or worse than it may be
USAGE = 2  # the arguments are wrong, there was nothing to judge, or a file could not be written
FAILED = 3  # the code of the team failed
OURS = 4  # trainguard itself failed
INTERRUPTED = 130
_PACKAGE: Final = str(Path(__file__).parents[1])
_FOR_EVER = 1e9  # seconds: 30 years, and few enough for every timer


@contextmanager
def ending() -> Iterator[None]:
    """Run a command in a block, and end the program where it raises, with one of `exits`."""
    try:
        yield
    except DeclarationError as error:
        say(error.as_option, sys.stderr)
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 whatever it is, it is ours
        say(render_crash(error), sys.stderr)
        raise typer.Exit(OURS) from None


def seconds(timeout: float | None) -> float | None:
    """Return the time limit, if that is one; raises for one that leaves no time."""
    if timeout is not None and not timeout > 0:
        raise DeclarationError(f"--timeout {timeout:g} leaves no time. Give a number of seconds.")
    return timeout if timeout is not None and timeout < _FOR_EVER else None


def with_options(remedy: str) -> str:
    """Return a remedy in the words of a command line, where it is about a declaration."""
    return remedy.replace("with timeout=<seconds>", "with --timeout <seconds>")


def leave_child(error: BaseException | None) -> None:
    """End a forked child with the exit code, and the traceback, that Python would end it with."""
    if isinstance(error, SystemExit):
        raise error
    if error is not None:
        report_error(error, sys.stderr)
    raise SystemExit(0 if error is None else 1)


def report_error(error: BaseException, err: TextIO) -> int:
    """Tell how a script failed, as Python would, and return the exit code that stands for it."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        if not isinstance(error.code, int):
            say(str(error.code), err)
        return FAILED
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    if hook is sys.__excepthook__:
        say(render_traceback(error), err)
        return FAILED
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    try:
        hook(type(error), error.with_traceback(trace), trace)
    except SystemExit:
        return FAILED
    except BaseException as fault:  # noqa: BLE001 the script's own, told as Python tells it
        parts = "Error in sys.excepthook:", render_traceback(fault), "", "Original exception was:"
        say("\n".join([*parts, render_traceback(error)]), err)
    return FAILED


def account_for_exits(name: str, replace: Callable[[Any, str, Any], None]) -> None:
    """Let `replace` watch the calls that end a script, or put another program in its place."""
    owner, leave = os.getpid(), os._exit  # of which nobody is told twice
    replace(os, "_exit", partial(_account_for_exit, name, owner))
    for way in ("execv", "execve"):  # the others call one of these
        replace(os, way, partial(_account_for_exec, name, owner, leave))


def _account_for_exec(
    name: str, owner: int, leave: Callable[[int], NoReturn], replace: Callable[..., NoReturn]
) -> Callable[..., NoReturn]:
    """
    Return an `os.execv` or `os.execve` after which a run that nobody can judge is no pass.

    The other program runs as a child, so that somebody is left to say so when it has ended.
    """

    def wrapper(path: Any, argv: Sequence[Any], env: Mapping[Any, Any] | None = None) -> NoReturn:
        """Run another program in our place, and tell of it; raises where it cannot be run."""
        if os.getpid() != owner or isinstance(path, int):
            replace(path, argv) if env is None else replace(path, argv, env)
        other = subprocess.Popen(  # noqa: S603 the script asks for it
            list(argv), executable=path, env=env, close_fds=False, restore_signals=False
        )
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells both
            signal.signal(signal.SIGTERM, lambda number, _: other.send_signal(number))
        status = other.wait()
        say(f"`{name}` left by os.{replace.__name__}: nothing was judged.", sys.stderr)
        leave((128 - status if status < 0 else status) or USAGE)

    return wrapper


def _account_for_exit(
    name: str, owner: int, leave: Callable[[int], NoReturn]
) -> Callable[[int], NoReturn]:
    """Return an `os._exit` after which a run that nobody can judge any more is no pass."""

    def wrapper(status: int) -> NoReturn:
        """Leave at once, as children do that were forked; the script itself is told of first."""
        if os.getpid() == owner:
            tell_gone(f"it left by os._exit({status})")
            with suppress(AttributeError, OSError, ValueError):  # None, broken pipe, closed
                sys.stdout.flush()
                sys.stderr.write(f"`{name}` left by os._exit({status}): nothing was judged.\n")
                sys.stderr.flush()
            leave(status or USAGE)
        leave(status)

    return wrapper


@contextmanager
def end_in_order() -> Iterator[None]:
    """
    Let a launcher that ends this process, as another one died, leave it time for its report.

    The script is left as by Ctrl-C, its `finally` blocks run; what comes after it is not ended.
    """
    owner = os.getpid()

    def leave_script(number: int, _frame: object) -> None:
        """Leave the script, once; a child of it ends as it would have."""
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    alone = world() == 1 or threading.current_thread() is not threading.main_thread()
    if alone or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave_script)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is leave_script:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def name_port(failure: BaseException | None) -> str:
    """Return a sentence where processes could not meet as their port is in use; else nothing."""
    told = str(failure)
    if "EADDRINUSE" not in told and "address already in use" not in told.lower():
        return ""
    number = re.search(r"port: (\d+)", told)
    port = number[1] if number else os.environ.get("MASTER_PORT", "of the script")
    return (
        f"Port {port} is in use, perhaps by another run or by one that was killed. Give this one"
        " another: `torchrun --standalone` takes a free one, otherwise set MASTER_PORT."
    )
