"""The options of `trainguard memory`."""

from pathlib import Path
from typing import Annotated

import typer

from trainguard.command.exit import ending
from trainguard.command.memory.command import run
from trainguard.command.memory.request import MemoryRequest
from trainguard.report.json import check_writable
from trainguard.subjects.units import parse_bytes

Words = list[str] | None


def show_memory(
    target: Annotated[
        str,
        typer.Argument(
            help="module:factory, guard_file.py::subject, or a script.", metavar="TARGET"
        ),
    ],
    args: Annotated[
        Words, typer.Argument(help="The command line of a script, after --.", metavar="ARGS")
    ] = None,
    at: Annotated[
        Words, typer.Option(help="Size of a dimension, or argument.", metavar="NAME=VALUE")
    ] = None,
    inputs: Annotated[
        Words,
        typer.Option(
            "--input", help="An input of module:factory, as declared.", metavar="NAME=DOMAIN"
        ),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="The loss of module:factory.", metavar="MODULE:NAME")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="Of torch.optim, such as SGD, or module:name.", metavar="NAME"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16 stands for autocast.", metavar="DTYPE")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="What to predict for: cuda or cpu.", metavar="DEVICE")
    ] = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="With the declared checkpointing.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="Say what fits into it: 24GiB.", metavar="AMOUNT")
    ] = None,
    fit: Annotated[
        Words, typer.Option(help="The sizes to find the largest of.", metavar="NAME")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the timeline.", metavar="FILE")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write a picture of the timeline.", metavar="FILE")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Write it for PyTorch's viewer.", metavar="FILE")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write all of it to this file.", metavar="FILE")
    ] = None,
) -> None:
    """
    Show where the memory of one training step goes, and what fits, with no GPU at hand.

    Exits with 0, with 1 where the step is larger than --budget, with 2 for a wrong usage, 3 where
    the code of TARGET failed, 4 where trainguard did, and 130 after Ctrl-C.
    """
    files = {"html": html, "png": png, "snapshot": snapshot, "json": json}
    with ending():
        order = MemoryRequest(
            target=target,
            args=tuple(args or ()),
            at=tuple(at or ()),
            inputs=tuple(inputs or ()),
            loss=loss,
            optimizer=optimizer,
            dtype=dtype,
            device=device,
            checkpoint=checkpoint,
            budget=None if budget is None else parse_bytes("--budget", budget),
            fit=tuple(fit or ()),
            files={
                kind: check_writable(f"--{kind}", path)
                for kind, path in files.items()
                if path is not None
            },
        )
        raise typer.Exit(run(order))
