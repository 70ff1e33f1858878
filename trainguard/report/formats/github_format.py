"""
Annotations of GitHub Actions: each finding at its line, in the pull request that has it.

Source: GitHub documentation, Workflow commands for GitHub Actions (setting an error message).
"""

from collections.abc import Sequence

from trainguard.core.measure import Place
from trainguard.report.formats import RunAccount, state_finding

# GitHub reads a command up to the line break, and a property up to the next comma or colon.
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def write(told: Sequence[Sequence[str]]) -> str:
    """Return the workflow commands of all runs, one a line."""
    return "\n".join(line for lines in told for line in lines)


def tell(account: RunAccount) -> list[str]:
    """Return a workflow command for each finding: an error, or a notice for what is a note."""
    lines = [
        _annotate(
            "error" if fails else "notice",
            account.locate_in_workspace(finding.at),
            verdict.invariant.name,
            state_finding(finding),
        )
        for verdict, finding, fails in account.found()
    ]
    place = account.locate_in_workspace(Place(""))
    return lines + [_annotate("error", place, name, text) for name, text in account.apart()]


def _annotate(level: str, place: tuple[str, int], name: str, message: str) -> str:
    """Return one workflow command."""
    file, line = place
    told = f"file={_escape(file, _PROPERTY)},line={line}"
    title = _escape(f"trainguard: {name}", _PROPERTY)
    return f"::{level} {told},title={title}::{_escape(message, _MESSAGE)}"


def _escape(text: str, codes: dict[str, str]) -> str:
    """Write what would end a command, or a part of one, as its code."""
    return "".join(codes.get(letter, letter) for letter in text)
