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
from trainguard.core.measure import Place
from trainguard.judging.verdict import Verdict
from trainguard.report.formats import RunAccount, state_finding

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def write(told: Sequence[dict[str, Any]]) -> str:
    """
    Return a log with what was found.

    It has one run, however many trainings there were: code scanning of GitHub refuses a file with
    several runs of one tool.
    """
    rules = {rule["id"]: rule for each in told for rule in each["rules"]}
    driver = {"name": "trainguard", "version": version("trainguard"), "rules": [*rules.values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [result for each in told for result in each["results"]],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return f"{json.dumps(log, indent=2)}\n"


def tell(account: RunAccount) -> dict[str, Any]:
    """Return a rule for each invariant that was judged, and a result for each finding."""
    judged = {verdict.invariant.key: verdict.invariant for verdict in account.verdicts}
    names = {made.name: key for key, made in judged.items()}
    return {
        "rules": [
            {"id": key, "name": made.name, "shortDescription": {"text": made.title}}
            for key, made in judged.items()
        ],
        "results": [
            *(_tell_finding(account, *each) for each in account.found()),
            *(
                _result(account, names.get(name, name), Place(""), text, text)
                for name, text in account.apart()
            ),
        ],
    }


def _tell_finding(
    account: RunAccount, verdict: Verdict, finding: Finding, fails: bool
) -> dict[str, Any]:
    """Return the result of a finding."""
    key, text = verdict.invariant.key, state_finding(finding)
    level = "error" if fails else "note"
    return _result(account, key, finding.at, text, finding.summary, level)


def _result(
    account: RunAccount, key: str, at: Place, text: str, summary: str, level: str = "error"
) -> dict[str, Any]:
    """
    Return one result, at the declaration where nothing is known of its line.

    Code scanning refuses one without a place. The fingerprint survives where lines above it are
    added, and does not depend on the folder that the file is told from.
    """
    file, line = account.locate(at)
    name = account.owner or account.subject.name
    same = sha256(f"{key}\n{name}\n{file}\n{summary}".encode()).hexdigest()
    uri = quote(account.locate_in_workspace(at)[0])
    place = {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}
    return {
        "ruleId": key,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"trainguard/v1": same},
    }
