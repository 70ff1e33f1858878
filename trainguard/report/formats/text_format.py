"""The report as it is printed."""

from collections.abc import Sequence

from trainguard.report.formats import RunAccount


def write(accounts: Sequence[RunAccount]) -> str:
    """Return the text that a terminal is shown."""
    return "\n\n".join(account.text for account in accounts)
