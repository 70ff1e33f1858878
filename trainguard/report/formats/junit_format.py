"""
JUnit XML: a test case for each invariant, which the test pages of CI servers show.

Source: the schema of Jenkins' xUnit plugin, which pytest's own junitxml follows (xunit2).
"""

import re
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from trainguard.judging.verdict import Verdict
from trainguard.report.formats import RunAccount
from trainguard.report.text import render_note, render_verdict

_NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # of XML 1.0


def write(accounts: Sequence[RunAccount]) -> str:
    """Return a test suite for each run; what had nothing to judge is skipped, with the reason."""
    suites = ET.Element("testsuites", name="trainguard")
    for account in accounts:
        _add_suite(suites, account)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _add_suite(suites: ET.Element, account: RunAccount) -> None:
    """Add the test suite of one run."""
    counts = {
        "tests": len(account.verdicts) + len(account.others),
        "failures": sum(verdict.fails for verdict in account.verdicts) + len(account.others),
        "skipped": sum(verdict.outcome == "skipped" for verdict in account.verdicts),
        "errors": 0,
    }
    attributes = {"name": account.name, "time": f"{account.told.seconds:.3f}"}
    attributes |= {name: str(count) for name, count in counts.items()}
    suite = ET.SubElement(suites, "testsuite", attributes)
    for verdict in account.verdicts:
        _add_case(suite, verdict)
    for rank, name, text in account.others:
        case = ET.SubElement(suite, "testcase", classname=f"rank {rank}", name=name)
        _add_failure(case, text)


def _add_case(suite: ET.Element, verdict: Verdict) -> None:
    """Add the test case of one invariant."""
    made = verdict.invariant
    case = ET.SubElement(suite, "testcase", classname=verdict.subject.name, name=made.key)
    if verdict.fails:
        _add_failure(case, render_verdict(verdict))
    elif verdict.outcome in ("skipped", "excused", "known"):
        why = verdict.reason or "known from the baseline"
        ET.SubElement(case, "skipped", message=_clean(why))
    notes = [render_note(finding, made) for finding in verdict.notes]
    if notes and not verdict.strict:
        ET.SubElement(case, "system-out").text = _clean("\n".join(notes))


def _add_failure(case: ET.Element, text: str) -> None:
    """Add why a test case failed; its first line is the message."""
    head, _, _ = text.partition("\n")
    ET.SubElement(case, "failure", message=_clean(head)).text = _clean(text)


def _clean(text: str) -> str:
    """Replace what no XML document may hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
