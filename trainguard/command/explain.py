"""`trainguard list`, `explain` and `schema`: what is judged, and what programs may rely on."""

import inspect
import re
import sys
from difflib import get_close_matches
from typing import Annotated, Final

import typer

from trainguard.command.exit import USAGE, ending
from trainguard.command.options import complete_name
from trainguard.command.output import say
from trainguard.core.catalogue import (
    Invariant,
    catalogue,
    check_globs,
    current_name,
    find_invariants,
    has_limit,
    matches,
)
from trainguard.core.errors import DeclarationError
from trainguard.report.example import mended_example
from trainguard.report.json import render
from trainguard.report.schema import SCHEMAS

_NEAR: Final = 8  # names that are offered in place of one that is none
_ALIKE: Final = 0.9  # beyond this likeness it is a slip of the keys


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
        _check_name(name)
        _tell("\n\n".join(_explain(made) for made in find_invariants(name)))


def _check_name(name: str) -> None:
    """Raise DeclarationError for a name that no invariant has or had, with those near to it."""
    bare = name.rpartition(".")[2]
    if current_name(bare) != bare or any(name in (made.name, made.key) for made in catalogue()):
        return
    *others, last = [repr(near) for near in _find_near(name)] or [""]
    choice = f"{', '.join(others)} or {last}" if others else last
    offer = f" Did you mean {choice}?" if choice else ""
    raise DeclarationError(
        f"No invariant is called {name!r}.{offer} `trainguard list` shows them all."
    )


def _find_near(name: str) -> list[str]:
    """Return the names nearest to one that is none: that have its words, or its letters."""
    names = sorted({made.name for made in catalogue()})
    slip = get_close_matches(name, names, n=1, cutoff=_ALIKE)
    if slip:
        return slip
    word = name.lower().strip("*? ")
    parts = [part for part in re.split(r"[\W_]+", word) if part]
    texts = {made.name: f"{made.key} {made.title}".lower() for made in catalogue()}
    near = [made for made in texts if word and word in made]
    near += [made for made, text in texts.items() if word and word in text]
    near += [made for made, text in texts.items() if parts and all(p in text for p in parts)]
    near += get_close_matches(word, names, n=_NEAR)
    return [*dict.fromkeys(near)][:_NEAR]


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
