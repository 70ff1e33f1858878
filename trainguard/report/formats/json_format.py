"""The findings as a JSON document."""

import sys
from collections.abc import Sequence
from typing import Any

from trainguard.core.secrets import hide_secrets
from trainguard.report.formats import RunAccount
from trainguard.report.json import VERSION, document, findings, render
from trainguard.report.log_summary import as_plain
from trainguard.subjects.loop import Script


def write(accounts: Sequence[RunAccount]) -> str:
    """Return what `--json FILE` writes: of one script, or an entry for each run of logs."""
    for account in accounts:
        if isinstance(account.subject, Script):
            return document(account.subject, account.verdicts, account.told, account.others)
    words = [*hide_secrets(sys.argv[1:])]
    return render({"version": VERSION, "args": words, "runs": [*map(_of_log, accounts)]})


def _of_log(account: RunAccount) -> dict[str, Any]:
    """Return what became of the logs of one run, in plain values."""
    told = {"run": account.name, **findings(account.verdicts)}
    return {**told, "log": as_plain(account.trace)}
