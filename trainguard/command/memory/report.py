"""The report of `trainguard memory` on a terminal: tables, the moment of the peak, what fits."""

import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap

from rich.box import Box
from rich.console import Console
from rich.table import Table

from trainguard.events.memory import Breakdown, Fit, MemoryReport, PeakPart
from trainguard.report.text import WIDTH, render_rows
from trainguard.subjects.units import format_bytes

ROWS = 14  # of modules and lines; what is left is added up
_LEAST = 0.0005  # of the peak: what is less would show as 0.0 %
_LISTED = 3  # categories of a module
_BAR, _WHICH = 20, 42  # characters
_RULE = Box("    \n    \n -- \n    \n -- \n    \n    \n    \n", ascii=True)  # under the head


def report(account: MemoryReport) -> str:
    """Return all that is printed, in colour where it goes to a terminal."""
    console = Console(
        file=io.StringIO(), width=WIDTH, highlight=False, markup=False, emoji=False,
        force_terminal=sys.stdout.isatty(),
    )  # fmt: skip
    told = account.breakdown
    console.print(render_rows([headline(told)], list(rows(told))), soft_wrap=True)
    for table in tables(told):
        console.print()
        console.print(table)
    if account.budget is not None:
        console.print()
        console.print(render_rows([], list(fitting(account))), soft_wrap=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def headline(told: Breakdown) -> str:
    """Say what was followed, and how."""
    return f"{told.subject}: one training step, {told.how}"


def rows(told: Breakdown) -> Iterable[tuple[str, str]]:
    """Yield what is said of the peak before the tables."""
    if told.sizes:
        yield "at", ", ".join(f"{name}={value}" for name, value in told.sizes)
    least = "at least " * told.exhausted
    yield "peak", f"{least}{format_bytes(told.peak)}, in {told.moment}"
    if told.exhausted:
        yield "stopped", "it took more memory than there was; what follows is what it held by then"
    if told.source:
        yield "largest", f"made at {short(told.source)}"
    if told.detail:
        yield "note", told.detail
    if told.predicted_for == "cuda":
        yield "besides", "kernels' scratch space, the CUDA context, fragmentation: 1 to 2 GiB"


def tables(told: Breakdown) -> Iterable[Table]:
    """Yield the tables: by category, by module, by line."""
    yield _categories(told)
    yield _parts("module", told.modules, told.peak)
    if told.lines:
        lines = [PeakPart(name=short(part.name), held=part.held) for part in told.lines]
        yield _parts("line", lines, told.peak)


def fitting(account: MemoryReport) -> Iterable[tuple[str, str]]:
    """Yield whether the step is within the budget, and the largest sizes that are."""
    spare, budget = account.spare or 0, account.budget or 0
    word = (
        f"{format_bytes(spare)} of it are left"
        if spare >= 0
        else f"{format_bytes(-spare)} more than there is"
    )
    fits = "fits" if spare >= 0 else "does not fit"
    yield "budget", f"{format_bytes(budget)}: the step {fits}, {word}"
    for fit in account.fits:
        yield "fits", describe_fit(fit)
    if not account.fits and not account.breakdown.predicted_for:
        yield "fits", "not looked for: only predictions are tried at other sizes"


def describe_fit(fit: Fit) -> str:
    """Say up to which size a step fits, and what stops it there."""
    if fit.above:
        stop = f"; {format_bytes(fit.above)} with {fit.next}"
    else:
        stop = f": {fit.why}" if fit.why else ""
    most = (
        f"{fit.name} up to {fit.most}, {format_bytes(fit.peak)}"
        if fit.most
        else f"no {fit.name} at all"
    )
    steps = f", in steps of {fit.grain}" if fit.grain > 1 else ""
    return f"{most}{stop}{steps} ({fit.tried} sizes predicted)"


def short(source: str) -> str:
    """Return `file:line` with the file from the working directory, where it is below it."""
    file, _, line = source.rpartition(":")
    try:
        return f"{Path(file).relative_to(Path.cwd()).as_posix()}:{line}"
    except ValueError:
        return source


def _categories(told: Breakdown) -> Table:
    """Lay out what each category held at the peak, and at its own highest moment."""
    table = _table("category", "at the peak", "share", "", "highest")
    for part in told.categories:
        share = part.held / told.peak
        bar = "#" * round(_BAR * share)
        table.add_row(
            part.name, format_bytes(part.held), f"{share:.1%}", bar, format_bytes(part.highest)
        )
    table.add_section()
    table.add_row("all", format_bytes(told.peak), "100.0%")
    return table


def _parts(kind: str, parts: Sequence[PeakPart], peak: int) -> Table:
    """Lay out what modules or lines held at the peak, largest first, the rest added up."""
    table = _table(kind, "at the peak", "share", "of which" if kind == "module" else "")
    listed = [part for part in parts[:ROWS] if part.held >= _LEAST * peak] or parts[:1]
    for part in listed:
        name = f"{part.name} ({part.count})" if part.count > 1 else part.name
        share, which = f"{part.held / peak:.1%}", _wrap(of_which(part))
        table.add_row(name, format_bytes(part.held), share, which)
    rest = parts[len(listed) :]
    if rest:
        held = sum(part.held for part in rest)
        table.add_row(f"and {len(rest)} more", format_bytes(held), f"{held / peak:.1%}")
    return table


def of_which(part: PeakPart) -> str:
    """List the largest categories of a module."""
    listed = [f"{name} {format_bytes(held)}" for name, held in part.categories[:_LISTED]]
    return ", ".join(listed) if len(part.categories) > 1 else "".join(c for c, _ in part.categories)


def _wrap(listed: str) -> str:
    """Break a list of amounts after commas only: "17.00 GiB" stays on one line."""
    parts = ", ".join(part.replace(" ", "\0") for part in listed.split(", "))
    lines = wrap(parts, _WHICH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _table(*heads: str) -> Table:
    """Return a table with numbers to the right."""
    table = Table(box=_RULE, show_edge=False, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(
            head,
            justify="right" if head in ("at the peak", "share", "highest") else "left",
            no_wrap=head not in ("module", "line", "category"),
            overflow="fold",
        )
    return table
