"""The findings as a JSON document."""

from trainguard.report.formats import RunAccount
from trainguard.report.json import document


def write(account: RunAccount) -> str:
    """Return what `--json FILE` writes."""
    return document(account.subject, account.verdicts, account.told, account.others)
