"""`trainguard list`, `explain` and `schema`: what is judged, and what programs may rely on."""

import inspect
import sys
from typing import Annotated

import typer

from trainguard.command.exit import USAGE, ending
from trainguard.command.options import complete_name
from trainguard.command.output import say
from trainguard.core.catalogue import (
    Invariant,
    catalogue,
    check_globs,
    find_invariants,
    has_limit,
    matches,
)
from trainguard.core.errors import DeclarationError
from trainguard.report.example import mended_example
from trainguard.report.json import render
from trainguard.report.schema import SCHEMAS


def list_invariants(
    globs: Annotated[
        list[str] | None, typer.Argument(help="Such as 'loss.*'; all if none.", metavar="GLOBS")
    ] = None,
) -> None:
    """List the invariants: what holds when all is well."""
    chosen = globs or ["*"]
    with ending():
        check_globs("GLOB", chosen)
        shown = [made for made in catalogue() if matches(made, chosen)]
        width = max(len(made.key) for made in shown)
        _tell("\n".join(f"{made.key:<{width}}  {made.title}{_needs(made)}" for made in shown))


def explain(
    name: Annotated[
        str,
        typer.Argument(
            help="Such as gradient_is_finite.", metavar="NAME", autocompletion=complete_name
        ),
    ],
) -> None:
    """Explain an invariant: what it judges, allows and misses."""
    with ending():
        _tell("\n\n".join(_explain(made) for made in find_invariants(name)))


def _tell(text: str) -> None:
    """Print what was asked for; where it does not arrive, that is a failure."""
    if not say(text, sys.stdout, sys.stderr):
        raise typer.Exit(USAGE)


def _explain(made: Invariant) -> str:
    """Lay out all that is known of an invariant."""
    needs = ", ".join(sorted(made.needs)) or "nothing promised"
    run = made.family == "loop" and made.probe == "run"
    example = mended_example(made.key)
    return "\n".join(
        [
            made.key,
            "",
            *(f"  {line}".rstrip() for line in (inspect.getdoc(made.judge) or "").splitlines()),
            "",
            f"  Needs: {needs}. Judged once per {made.per}, from the probe `{made.probe}`.",
            f'  Excuse: allow={{"{made.name}": "<reason>"}}.',
            *([f'  Limit: limits={{"{made.name}": <number>}}.'] * has_limit(made)),
            f"  Leave out: --trainguard-ignore={made.key}.",
            *([f"  In `trainguard run`: --allow {made.name}=REASON, --ignore {made.key}."] * run),
            *(["", "  An example, and what mends it:", ""] if example else []),
            *(f"    {line}".rstrip() for line in example.splitlines()),
        ]
    )


def _needs(made: Invariant) -> str:
    """Say which promises switch an invariant on, or nothing where none is needed."""
    return f" [needs {', '.join(sorted(made.needs))}]" if made.needs else ""


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
