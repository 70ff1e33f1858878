"""Markdown: the summary page of a job in GitHub or GitLab, a comment, a ticket."""

from collections.abc import Sequence

from trainguard.report.formats import RunAccount, state_finding
from trainguard.report.run_report import judged_text


def write(told: Sequence[str]) -> str:
    """Return the sections of all runs."""
    return "\n\n".join(told)


def tell(account: RunAccount) -> str:
    """Return what was judged, a table of what was found, and the whole report, folded."""
    rows = [
        _row(
            "broken" if fails else "note",
            verdict.invariant.name,
            ":".join(map(str, account.locate(finding.at))),
            state_finding(finding),
        )
        for verdict, finding, fails in account.found()
    ]
    rows += [_row("stale", v.invariant.name, "", v.reason) for v in account.stale()]
    rows += [_row("broken", name, f"rank {rank}", "see below") for rank, name, _ in account.others]
    rows += [_row("unobserved", name, "", text.partition("\n")[0]) for name, text in account.faults]
    table = [_row("", "invariant", "at", "what"), "|---|---|---|---|", *rows] if rows else []
    fence = "~" * 3 + "~" * account.text.count("~~~")
    folded = [
        "<details><summary>The whole report</summary>",
        "",
        fence,
        account.text.strip(),
        fence,
    ]
    parts = [
        "## trainguard",
        judged_text(account.verdicts),
        _escape(account.headline),
        "\n".join(table),
    ]
    return "\n\n".join([*filter(None, parts), "\n".join([*folded, "", "</details>"])])


def _row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    """Write what would be read as markup, or end a cell, as it is."""
    marked = "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|~" else letter for letter in text)
    return " ".join(marked.split())
