"""The report as it is printed."""

from trainguard.report.formats import RunAccount


def write(account: RunAccount) -> str:
    """Return the text that a terminal is shown."""
    return account.text
