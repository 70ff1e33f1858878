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


def write(told: Sequence[str]) -> str:
    """Return the document with the test suite of each run."""
    suites = ET.Element("testsuites", name="trainguard")
    suites.extend(map(ET.fromstring, told))
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def tell(account: RunAccount) -> str:
    """Return the test suite of one run; what had nothing to judge is skipped, with the reason."""
    counts = {
        "tests": len(account.verdicts) + len(account.others) + len(account.faults),
        "failures": sum(verdict.fails for verdict in account.verdicts) + len(account.others),
        "skipped": sum(verdict.outcome == "skipped" for verdict in account.verdicts),
        "errors": len(account.faults),
    }
    attributes = {"name": _clean(account.name), "time": f"{account.told.seconds:.3f}"}
    attributes |= {name: str(count) for name, count in counts.items()}
    suite = ET.Element("testsuite", attributes)
    for verdict in account.verdicts:
        _add_case(suite, verdict, account.owner or verdict.subject.name)
    for rank, name, text in account.others:
        case = ET.SubElement(suite, "testcase", classname=f"rank {rank}", name=name)
        _add_failure(case, text)
    for name, text in account.faults:
        case = ET.SubElement(suite, "testcase", classname=account.name, name=name)
        _add_failure(case, text, "error")
    return ET.tostring(suite, encoding="unicode")


def _add_case(suite: ET.Element, verdict: Verdict, name: str) -> None:
    """Add the test case of one invariant."""
    made = verdict.invariant
    case = ET.SubElement(suite, "testcase", classname=_clean(name), name=verdict.label)
    if verdict.fails:
        _add_failure(case, render_verdict(verdict))
    elif verdict.outcome in ("skipped", "excused", "known"):
        why = verdict.reason or "known from the baseline"
        ET.SubElement(case, "skipped", message=_clean(why))
    notes = [render_note(finding, made) for finding in verdict.notes]
    if notes and not verdict.strict:
        ET.SubElement(case, "system-out").text = _clean("\n".join(notes))


def _add_failure(case: ET.Element, text: str, kind: str = "failure") -> None:
    """Add why a test case failed; its first line is the message."""
    head, _, _ = text.partition("\n")
    ET.SubElement(case, kind, message=_clean(head)).text = _clean(text)


def _clean(text: str) -> str:
    """Replace what no XML document may hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
