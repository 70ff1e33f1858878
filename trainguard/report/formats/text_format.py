"""The report as it is printed."""

from collections.abc import Sequence

from trainguard.report.formats import RunAccount


def tell(account: RunAccount) -> str:
    """Return the text that a terminal is shown."""
    return account.text


def write(told: Sequence[str]) -> str:
    """Return the texts of all, one below the other."""
    return "\n\n".join(told)
