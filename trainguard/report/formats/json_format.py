"""The findings as a JSON document."""

import sys
from collections.abc import Sequence
from typing import Any

from trainguard.core.secrets import hide_secrets
from trainguard.report import log_summary, run_summary
from trainguard.report.formats import RunAccount
from trainguard.report.json import VERSION, document, findings, render
from trainguard.subjects.loop import Script


def write(told: Sequence[dict[str, Any]]) -> str:
    """Return what `--json FILE` writes of a script, or an entry for each run of logs or subject."""
    if told and "script" in told[0]:
        return render(told[0])
    kind = "runs" if told and "run" in told[0] else "subjects"
    return render({"version": VERSION, "args": [*hide_secrets(sys.argv[1:])], kind: [*told]})


def tell(account: RunAccount) -> dict[str, Any]:
    """Return what became of one run, or of one declared subject."""
    found = findings(account.verdicts)
    if account.owner:
        told = {"subject": account.owner, "kind": account.kind, **found}
        faults = [{"invariant": name, "text": text} for name, text in account.faults]
        run = run_summary.as_plain(account.told) if account.told.steps else None
        return {**told, "faults": faults, "trace": run}
    if isinstance(account.subject, Script):
        return document(account.subject, account.verdicts, account.told, account.others)
    return {"run": account.name, **found, "log": log_summary.as_plain(account.trace)}
