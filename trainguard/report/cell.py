"""The output of a notebook's cell: what was judged in one line, each finding in full below it."""

from collections.abc import Sequence
from html import escape

from trainguard.judging.verdict import Verdict
from trainguard.report.run_report import judged_text
from trainguard.report.text import render, render_verdict

_COLOURS = {"broken": "#b3261e", "note": "#8a6100"}


def render_cell(name: str, verdicts: Sequence[Verdict]) -> str:
    """Write HTML for a cell: the counts of what was judged, then what is broken, then notes."""
    broken = [_fold(f"broken: {v.invariant.name}", render_verdict(v)) for v in verdicts if v.fails]
    notes = [
        _fold(f"note: {verdict.invariant.name}", render(note, verdict))
        for verdict in verdicts
        if not verdict.fails
        for note in verdict.notes
    ]
    return "\n".join(
        [f"<div><b>{escape(name)}</b>: {judged_text(verdicts)}</div>", *broken, *notes]
    )


def _fold(title: str, text: str) -> str:
    """Write a text under a title that folds it; what is broken stands open."""
    rank = title.partition(":")[0]
    shown = f'<summary style="color: {_COLOURS[rank]}">{escape(title)}</summary>'
    opened = " open" if rank == "broken" else ""
    return f"<details{opened}>{shown}<pre>{escape(text)}</pre></details>"
