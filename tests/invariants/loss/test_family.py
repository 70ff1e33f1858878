"""What holds for every judge of the family."""

import math
import sys
from pathlib import Path

import pytest

from trainguard.core.catalogue import catalogue
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace


def test_an_empty_trace_breaks_nothing() -> None:
    """No judge objects to what was not seen."""
    trace = Trace("nll", (), {"dtype": "bfloat16"})
    assert [made.name for made in catalogue("loss") if list(made.judge(trace))] == []


def test_every_judge_is_tested_here() -> None:
    """An invariant that is added to the family is to be tested in this folder."""
    text = "".join(f.read_text(encoding="utf-8") for f in Path(__file__).parent.glob("test_*.py"))
    names = {made.name for made in catalogue("loss")}
    assert [n for n in sorted(names) if n not in text and not n.endswith("_is_finite")] == []


def test_a_finding_fits_its_rows(sample, judged, components) -> None:
    """Summaries name the subject and hold no numbers; guesses hedge; all is ASCII."""
    for finding in every_finding(sample, judged, components):
        words = [finding.summary, finding.measured, finding.allowed, finding.why]
        assert "`nll`" in finding.summary
        assert not any(letter.isdigit() for letter in finding.summary.replace("float16", ""))
        assert all(word.isascii() for word in words)


def every_finding(sample, judged, components) -> list[Finding]:
    """Return one finding or more of every judge, from samples that are wrong in all ways."""
    quantities = (
        "value gradient largest_gradient plateau unreached jump difference precision device mixing"
        " padding padding_gradient likelihood"
    )
    wrong = [sample(q, 1e30, reference=0.0, label="whole") for q in quantities.split()]
    wrong += [sample("value", math.nan), sample("gradient", math.nan)]
    wrong += [sample("relation", 2.0, reference=1.0, scale=1.0, label="flip")]
    wrong += components(kl=1.0, pixels=1e9)
    found = []
    for made in catalogue("loss"):
        told = made.name == "call_leaves_no_trace"
        samples = [sample("mutated", 1.0), sample("warned", 1.0, label="w")] if told else wrong
        findings = judged(made.name, *samples, dtype="float16")
        assert findings, made.name
        found += findings
    return found


def test_judging_needs_no_torch(pytester: pytest.Pytester) -> None:
    """The judges are found and called without torch, NumPy or Hypothesis."""
    code = (
        "import sys\n"
        "from trainguard.core.catalogue import catalogue\n"
        "from trainguard.events.trace import Trace\n"
        "assert [list(made.judge(Trace('nll'))) for made in catalogue('loss')]\n"
        "assert not {'torch', 'numpy', 'hypothesis'} & sys.modules.keys()\n"
    )
    assert pytester.run(sys.executable, "-c", code).ret == 0
