"""The report as it is printed."""

from trainguard.report.formats import Account


def write(account: Account) -> str:
    """Return the text that a terminal is shown."""
    return account.text
