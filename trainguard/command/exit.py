"""How a command ends: with what it raised told, and with the exit code that stands for it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer

from trainguard.command.output import say
from trainguard.core.errors import DeclarationError
from trainguard.report.text import render_crash

CLEAN = 0
FOUND = 1  # something is broken, or worse than it may be
USAGE = 2  # the arguments are wrong, there was nothing to judge, or a file could not be written
FAILED = 3  # the code of the team failed
OURS = 4  # trainguard itself failed
INTERRUPTED = 130


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


def account_for_exit(
    name: str, owner: int, leave: Callable[[int], NoReturn]
) -> Callable[[int], NoReturn]:
    """Return an `os._exit` after which a run that nobody can judge any more is no pass."""

    def wrapper(status: int) -> NoReturn:
        """Leave at once, as children do that were forked; the script itself is told of first."""
        if os.getpid() == owner:
            with suppress(AttributeError, OSError, ValueError):  # None, broken pipe, closed
                sys.stdout.flush()
                sys.stderr.write(f"`{name}` left by os._exit({status}): nothing was judged.\n")
                sys.stderr.flush()
            leave(status or USAGE)
        leave(status)

    return wrapper
