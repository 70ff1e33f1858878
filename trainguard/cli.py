"""The command line: what is judged, and what each judgement means."""

import inspect
from typing import Annotated

import typer

from trainguard import __version__
from trainguard.catalogue import Invariant, catalogue, check_globs, matches, named
from trainguard.fault import DeclarationError

app = typer.Typer(
    name="trainguard",
    help="Judge declared losses and schedules: pytest --trainguard.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Judge declared losses and schedules: pytest --trainguard."""
    if version:
        typer.echo(f"trainguard {__version__}")
        raise typer.Exit


@app.command("list")
def list_invariants(
    globs: Annotated[
        list[str] | None, typer.Argument(help="Such as 'loss.*'; all if none.")
    ] = None,
) -> None:
    """List the invariants: what holds when all is well, and which promise each needs."""
    chosen = globs or ["*"]
    try:
        check_globs("GLOB", chosen)
    except DeclarationError as error:
        raise _refusal(error) from None
    shown = [made for made in catalogue() if matches(made, chosen)]
    width = max(len(made.key) for made in shown)
    for made in shown:
        typer.echo(f"{made.key:<{width}}  {made.title}{_needs(made)}")


@app.command()
def explain(name: Annotated[str, typer.Argument(help="Such as gradient_is_finite.")]) -> None:
    """Explain an invariant: what it judges, allows and misses, and why it is there."""
    try:
        found = named(name)
    except DeclarationError as error:
        raise _refusal(error) from None
    typer.echo("\n\n".join(_explained(made) for made in found))


def _explained(made: Invariant) -> str:
    """Lay out all that is known of an invariant."""
    needs = ", ".join(sorted(made.needs)) or "nothing promised"
    return "\n".join(
        [
            made.key,
            "",
            *(f"  {line}".rstrip() for line in (inspect.getdoc(made.judge) or "").splitlines()),
            "",
            f"  Needs: {needs}. Judged once per {made.per}, from the probe `{made.probe}`.",
            f'  Excuse: allow={{"{made.name}": "<reason>"}}.',
            f"  Leave out: --trainguard-ignore={made.key}.",
        ]
    )


def _needs(made: Invariant) -> str:
    """Say which promises switch an invariant on, or nothing where none is needed."""
    return f" [needs {', '.join(sorted(made.needs))}]" if made.needs else ""


def _refusal(error: DeclarationError) -> typer.Exit:
    """Print what is wrong with the arguments, and return the exit of a wrong usage."""
    typer.echo(str(error), err=True)
    return typer.Exit(2)
