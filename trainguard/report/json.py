"""The files that `trainguard run` and `trainguard memory` write: whole or not at all."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainguard.core.errors import DeclarationError
from trainguard.core.finding import Finding
from trainguard.core.measure import Measure, Place
from trainguard.core.secrets import hide_secrets
from trainguard.judging.verdict import Verdict
from trainguard.report.run_summary import RunSummary, as_plain, finite
from trainguard.subjects.loop import Script

VERSION = 2


def document(
    subject: Script,
    verdicts: Iterable[Verdict],
    told: RunSummary,
    others: Iterable[tuple[int, str, str]] = (),
) -> dict[str, Any]:
    """
    Return the JSON document of a run.

    `findings` holds what counts, notes included; what is excused stands apart, with its reason, and
    so does what only other processes have found: `others` are rank, invariant and report.
    """
    head = {"version": VERSION, "script": str(subject.path), "args": [*hide_secrets(subject.args)]}
    of_others = [dict(zip(("rank", "invariant", "text"), each, strict=True)) for each in others]
    found = {**findings(list(verdicts)), "others": of_others}
    return {**head, **found, "trace": as_plain(told)}


def render(document: dict[str, Any]) -> str:
    """Return a document as the text of a file."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def findings(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return what became of all that was judged, in plain values."""
    return {
        "judged": [*dict.fromkeys(v.invariant.key for v in verdicts if v.outcome != "skipped")],
        "unjudged": {v.invariant.key: v.reason for v in verdicts if v.outcome == "skipped"},
        "findings": [
            _entry(verdict, finding)
            for verdict in verdicts
            if verdict.outcome != "excused"
            for finding in verdict.findings
        ],
        "excused": [
            {**_entry(verdict, finding), "reason": verdict.reason}
            for verdict in verdicts
            if verdict.outcome == "excused"
            for finding in verdict.findings
        ],
        "known": [_entry(verdict, found) for verdict in verdicts for found in verdict.known],
        "stale": [verdict.invariant.name for verdict in verdicts if verdict.outcome == "stale"],
    }


def finding_lines(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return each finding by itself, in plain values."""
    return [_entry(verdict, finding) for verdict in verdicts for finding in verdict.findings]


def check_apart(written: Sequence[Path | None], read: Sequence[Path | None] = ()) -> None:
    """Raise where a file is to be written over another one, or over what is run or read."""
    # Path.resolve raises for links that lead to themselves.
    files = [Path(os.path.realpath(path)) for path in written if path is not None]
    files = [path for path in files if path.is_file() or not path.exists()]  # /dev/null takes all
    known = [*files, *{Path(os.path.realpath(path)) for path in read if path is not None}]
    twice = next((path for path in files if known.count(path) > 1), None)
    if twice is not None:
        raise DeclarationError(f"{twice.name} is given twice. Give each file a name of its own.")


def _entry(verdict: Verdict, finding: Finding) -> dict[str, Any]:
    """Return one finding in plain values."""
    return {
        "invariant": verdict.invariant.name,
        "family": verdict.invariant.family,
        "config": str(verdict.config),
        "rank": finding.rank.value,
        "summary": finding.summary,
        "at": _place(finding.at),
        "elsewhere": [_place(place) for place in finding.elsewhere],
        "measured": _measure(finding.measured),
        "allowed": _measure(finding.allowed),
        "why": finding.why,
    }


def _measure(measure: Measure) -> dict[str, Any]:
    """Return a number with its words; null where there is none, or none that JSON has."""
    value = None if measure.value is None else finite(measure.value)
    return {"value": value, "unit": measure.unit, "words": str(measure)}


def _place(place: Place) -> dict[str, Any]:
    """Return a place with its words; null stands for what is not known of it."""
    return {
        "file": place.file or None,
        "line": place.line,
        "step": place.step,
        "rank": place.rank,
        "coordinate": place.coordinate or None,
        "words": str(place),
    }
