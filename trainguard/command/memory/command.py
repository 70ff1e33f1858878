"""`trainguard memory`: follow one training step, and report where its memory goes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trainguard.command.exit import CLEAN, FAILED, FOUND, USAGE, ending, seconds, with_options
from trainguard.command.memory.fit import FitSearch
from trainguard.command.memory.outputs import document, page, picture
from trainguard.command.memory.report import report
from trainguard.command.memory.request import (
    MemoryRequest,
    check,
    dimensions_of,
    subject_of,
    survey_of,
)
from trainguard.command.output import say, write_file
from trainguard.core.errors import SubjectError
from trainguard.core.files import check_writable
from trainguard.events.memory import Breakdown, Fit, MemoryReport
from trainguard.report.progress import showing
from trainguard.report.text import render_cause
from trainguard.subjects.units import parse_bytes

Words = list[str] | None


def run(order: MemoryRequest) -> int:
    """
    Follow the step that is asked about, report it, write the files, and return the exit code.

    Raises DeclarationError, before anything is run, for what cannot be meant.
    """
    check(order)
    try:
        subject = subject_of(order)
        if order.timeout is not None:
            object.__setattr__(subject, "timeout", order.timeout)
        survey = survey_of(order, subject)
        dimensions = dimensions_of(order, subject)
        with telling() as tell:
            tell(f"following a step of {subject.name}")
            breakdown = survey.breakdown()
            fits = tuple(_fits(order, survey, breakdown, dimensions, tell))
    except SubjectError as fault:
        return _report_failure(order, fault)
    account = MemoryReport(target=order.target, breakdown=breakdown, budget=order.budget, fits=fits)
    written = _write(order, account, survey)
    written &= say(report(account).removesuffix("\n"), sys.stdout, sys.stderr)
    if not written:
        return USAGE
    return FOUND if account.spare is not None and account.spare < 0 else CLEAN


def _fits(
    order: MemoryRequest,
    survey: Any,
    breakdown: Breakdown,
    dimensions: Sequence[str],
    tell: Callable[[str], None],
) -> Iterator[Fit]:
    """Yield what fits into the budget; nothing is tried with real tensors."""
    if order.budget is None or not breakdown.predicted_for:
        return
    sizes = dict(breakdown.sizes)
    for name in dimensions:
        begin = sizes[name]
        assert isinstance(begin, int), "only whole numbers are looked for"

        def measure(size: int, name: str = name) -> int:
            """Predict the peak at a size, and say so while it lasts."""
            tell(f"predicting {name}={size}")
            peak: int = survey.peak(name, size)
            return peak

        search = FitSearch(measure, order.budget, {begin: breakdown.peak})
        yield search.largest(name, begin)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is going on while the block lasts; yields what says so."""
    now = ["beginning"]

    def tell(text: str) -> None:
        """Say what is going on from here on."""
        now[0] = text

    with showing(lambda seconds: f"{now[0]}, {seconds:.0f} s"):
        yield tell


def _write(order: MemoryRequest, account: MemoryReport, survey: Any) -> bool:
    """Write the files that are asked for; say of each that could not be, and whether all were."""
    makers: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: document(account),
        "html": lambda: page(account),
        "png": lambda: picture(account),
        "snapshot": survey.snapshot,
    }
    whole = True
    for kind, path in order.files.items():
        whole &= write_file(path, makers[kind], sys.stderr)
    return whole


def _report_failure(order: MemoryRequest, fault: SubjectError) -> int:
    """Tell why a step could not be followed, with the traceback of the team's own code."""
    told = f"{order.target} could not be followed: {fault.sentence}."
    remedy, cause = with_options(fault.remedy), render_cause(fault)
    said = [told, *([remedy] if remedy else []), *(["", cause] if cause else [])]
    say("\n".join(said), sys.stderr)
    return FAILED


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
    timeout: Annotated[
        float | None, typer.Option(help="Let each step have so many seconds.", metavar="SECONDS")
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
    Show where the memory of a training step goes, with no GPU.

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
            timeout=seconds(timeout),
            files={
                kind: check_writable(f"--{kind}", path)
                for kind, path in files.items()
                if path is not None
            },
        )
        raise typer.Exit(run(order))
