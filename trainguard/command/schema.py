"""`trainguard schema`: what other programs may rely on."""

import sys
from typing import Annotated

import typer

from trainguard.command.exit import USAGE, ending
from trainguard.command.output import say
from trainguard.core.errors import DeclarationError
from trainguard.report.json import render
from trainguard.report.schema import SCHEMAS


def _complete() -> list[str]:
    """Return the names of the schemas, for the completion of a shell."""
    return [*SCHEMAS]


def print_schema(
    name: Annotated[
        str,
        typer.Argument(help=f"{' or '.join(SCHEMAS)}.", metavar="NAME", autocompletion=_complete),
    ],
) -> None:
    """Print the JSON schema of the findings or of the settings."""
    with ending():
        if name not in SCHEMAS:
            known = ", ".join(SCHEMAS)
            raise DeclarationError(f"There is no schema {name!r}. Known: {known}.")
        if not say(render(SCHEMAS[name]()).rstrip(), sys.stdout, sys.stderr):
            raise typer.Exit(USAGE)
