"""The findings as a JSON document."""

from trainguard.report.formats import Account
from trainguard.report.json import document


def write(account: Account) -> str:
    """Return what `--json FILE` writes."""
    return document(account.subject, account.verdicts, account.told)
