"""How a command ends: with what it raised told, and with the exit code that stands for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

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
        typer.echo(error.as_option, err=True)
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 whatever it is, it is ours
        typer.echo(render_crash(error), err=True)
        raise typer.Exit(OURS) from None
