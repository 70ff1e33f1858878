"""
SARIF, which code scanning of GitHub, GitLab and Azure reads, and editors show at the line.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote

from trainguard.core.finding import Finding
from trainguard.judging.verdict import Verdict
from trainguard.report.formats import RunAccount, state_finding
from trainguard.report.text import render_verdict

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def write(accounts: Sequence[RunAccount]) -> str:
    """Return a log with what was found in each run."""
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [*map(_run, accounts)]}
    return f"{json.dumps(log, indent=2)}\n"


def _run(account: RunAccount) -> dict[str, Any]:
    """Return one run: a rule for each invariant, a result for each finding."""
    judged = {verdict.invariant.key: verdict.invariant for verdict in account.verdicts}
    rules = [
        {"id": key, "name": made.name, "shortDescription": {"text": made.title}}
        for key, made in judged.items()
    ]
    driver = {"name": "trainguard", "version": version("trainguard"), "rules": rules}
    return {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            *(_result(account, *each) for each in account.found()),
            *(_without_place(v.invariant.key, render_verdict(v)) for v in account.stale()),
            *(_without_place(name, f"rank {rank}: {text}") for rank, name, text in account.others),
        ],
    }


def _without_place(key: str, text: str) -> dict[str, Any]:
    """Return a result that is about no line: an excuse, or what another process has found."""
    return {"ruleId": key, "level": "error", "message": {"text": text}}


def _result(account: RunAccount, verdict: Verdict, finding: Finding, fails: bool) -> dict[str, Any]:
    """Return a finding; its fingerprint survives where lines above it are added."""
    file, line = account.locate(finding.at)
    key = verdict.invariant.key
    same = sha256(f"{key}\n{verdict.subject.name}\n{file}\n{finding.summary}".encode()).hexdigest()
    place = {"artifactLocation": {"uri": quote(file)}, "region": {"startLine": line}}
    return {
        "ruleId": key,
        "level": "error" if fails else "note",
        "message": {"text": state_finding(finding)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"trainguard/v1": same},
    }
