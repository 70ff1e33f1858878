"""The findings as a JSON document."""

import sys
from collections.abc import Sequence
from typing import Any

from trainguard.report.formats import RunAccount
from trainguard.report.json import VERSION, document, findings, render
from trainguard.report.log_summary import as_plain
from trainguard.subjects.loop import Script


def write(accounts: Sequence[RunAccount]) -> str:
    """Return what `--json FILE` writes: of one script, or an entry for each run of logs."""
    for account in accounts:
        if isinstance(account.subject, Script):
            return document(account.subject, account.verdicts, account.told, account.others)
    return render({"version": VERSION, "args": sys.argv[1:], "runs": [*map(_of_log, accounts)]})


def _of_log(account: RunAccount) -> dict[str, Any]:
    """Return what became of the logs of one run, in plain values."""
    told = {"run": account.name, **findings(account.verdicts)}
    return {**told, "log": as_plain(account.trace)}
