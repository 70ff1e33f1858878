"""
A page to read and to forward: the curves of runs with their findings at their steps.

One file without scripts and without anything to load; needs jinja2.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trainguard.core.catalogue import Invariant
from trainguard.core.finding import Finding
from trainguard.core.notebook import short_source
from trainguard.events.loop import Evaluation, Step
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Verdict
from trainguard.report.example import mended_example
from trainguard.report.formats import RunAccount
from trainguard.report.run_report import judged_text
from trainguard.report.run_summary import size_text
from trainguard.report.text import read_more, render_note, render_verdict, silence_of

WIDTH, HEIGHT = 1000, 100  # of a curve, in its own units
_MOST = 500  # points of a curve: two for each pixel of a small window
_EVALUATED = 4  # curves of evaluations
_TEMPLATES: Final = Path(__file__).parent
_Points = Sequence[tuple[float, float]]
Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve as it is drawn: its name, what it begins and ends with, its range, and its parts."""

    name: str
    first: str
    last: str
    low: str
    high: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepMark:
    """What was found at a step: its place in the curves, the numbers in the lists, the rank."""

    across: float
    numbers: tuple[int, ...]
    title: str
    kind: str


def write(told: Sequence[Told]) -> str:
    """Return the page of what was told of one run, of several, or of declared subjects."""
    runs = [{**each, "prefix": f"{n}-" if n else ""} for n, each in enumerate(told)]
    return fill_page("run_page.html", runs=runs, width=WIDTH, height=HEIGHT)


def fill_page(template: str, **values: Any) -> str:
    """Return a page with these values in it."""
    from jinja2 import Environment, FileSystemLoader  # late: it is no dependency

    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = _mark_code
    return environment.get_template(template).render(**values)


def tell(account: RunAccount) -> Told:
    """Return what the template is told of a run."""
    trace, verdicts = account.trace, account.verdicts
    steps = [event for event in trace if isinstance(event, Step)]
    passed = [e.step for e in trace if isinstance(e, Step | Evaluation)]
    ends = min(passed, default=0), max(passed, default=1)
    failing = [verdict for verdict in verdicts if verdict.fails]
    notes = [(v.invariant, f) for v in verdicts if not v.fails for f in v.notes]
    skipped: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome == "skipped":
            skipped.setdefault(verdict.reason, []).append(verdict.invariant.key)
    found = [(v.invariant, v.breaches[:1], "broken") for v in failing]
    found += [(made, (finding,), "note") for made, finding in notes]
    return {
        "name": account.name,
        "headline": account.headline,
        "judged": judged_text(verdicts),
        "rows": account.rows,
        "lines": [asdict(line) for line in _draw_lines(trace, steps, ends)],
        "marks": [asdict(mark) for mark in _mark(found, ends)],
        "ends": ends,
        "failing": [
            *_tell_failing(failing),
            *({"summary": f"{name} could not be judged", "text": t} for name, t in account.faults),
        ],
        "notes": [render_note(finding, made) for made, finding in notes],
        "passed": [
            (verdict.label, verdict.invariant.title)
            for verdict in verdicts
            if verdict.outcome == "passed"
        ],
        "others": account.others,
        "excused": [(v.invariant.key, v.reason) for v in verdicts if v.outcome == "excused"],
        "skipped": skipped,
    }


def _tell_failing(failing: Sequence[Verdict]) -> Iterator[Told]:
    """Yield what is told of each verdict that fails, with no example twice."""
    shown = {""}
    for verdict in failing:
        told = _tell_verdict(verdict)
        if told["example"] in shown:
            told["example"] = ""
        shown.add(told["example"])
        yield told


def _tell_verdict(verdict: Verdict) -> Told:
    """Return what fails of a verdict as labelled rows; of an excuse that is stale, as text."""
    stale, made = verdict.outcome == "stale", verdict.invariant
    finding = None if stale or not verdict.breaches else verdict.breaches[0]
    told: Told = {"name": made.name, "title": made.title, "example": mended_example(made.key)}
    if finding is None:
        return {**told, "summary": made.title, "text": render_verdict(verdict)}
    rows = [("at", str(finding.at)), ("measured", str(finding.measured))]
    rows += [("allowed", str(finding.allowed)), ("curve", finding.curve), ("why", finding.why)]
    ways = [("rerun", verdict.rerun), ("silence", silence_of(verdict)), ("read", read_more(made))]
    return {
        **told,
        "summary": finding.summary,
        "source": short_source(finding.source),
        "config": str(verdict.config).replace("-", ", "),
        "rows": [(label, text) for label, text in rows if text],
        "smallest": finding.smallest,
        "more": len(verdict.breaches) - 1,
        "ways": [(label, text) for label, text in ways if text],
    }


def _mark_code(text: str) -> Any:
    """Return a text in which what stands in backticks is code."""
    from markupsafe import Markup, escape  # late: jinja2 brings it

    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 escaped


def _draw_lines(trace: Trace[Any], steps: list[Step], ends: tuple[int, int]) -> Iterator[Line]:
    """Yield the curves of which something is known; of a log, one for each column it evaluates."""
    judged: dict[str, list[tuple[float, float]]] = {}
    for e in trace:
        if isinstance(e, Evaluation) and e.measures:
            name = e.module if "log" in trace.conditions else "loss of evaluations"
            judged.setdefault(name, []).append((e.step, e.loss))
    plain: Callable[[float], str] = "{:.4g}".format
    curves: list[tuple[str, list[tuple[float, float]], Callable[[float], str]]] = [
        ("loss", [(s.step, s.loss) for s in steps], plain),
        *((name, points, plain) for name, points in [*judged.items()][:_EVALUATED]),
        ("gradient norm", [(s.step, s.norm_before) for s in steps], plain),
        ("rate", [(s.step, max(s.rates)) for s in steps if s.rates], plain),
        ("memory", [(s.step, float(s.memory)) for s in steps if s.memory], size_text),
    ]
    for name, points, worded in curves:
        known = [y for _, y in points if math.isfinite(y)]
        if known:
            low, high = min(known), max(known)
            parts = tuple(_draw_parts(_thin(points), ends, low, high))
            told = worded(known[0]), worded(known[-1]), worded(low), worded(high)
            yield Line(name, *told, parts)


def _thin(points: _Points) -> _Points:
    """Return the highest and the lowest of each stretch, so that no spike is lost."""
    size = -(-len(points) // (_MOST // 2))
    if size <= 2:
        return points
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        part = points[first : first + size]
        known = [p for p in part if math.isfinite(p[1])]
        ends = {min(known, key=_height), max(known, key=_height)} if known else set()
        kept += sorted(ends | {p for p in part if not math.isfinite(p[1])})
    return kept


def _height(point: tuple[float, float]) -> float:
    """Return the value of a point."""
    return point[1]


def _draw_parts(points: _Points, ends: tuple[int, int], low: float, high: float) -> Iterator[str]:
    """Yield the points of each piece of a curve; it is broken where it is not finite."""
    up = (HEIGHT - 8) / ((high - low) or 1.0)
    low -= 0.5 * (high == low)  # what never changes lies in the middle
    piece: list[str] = []
    for x, y in [*points, (0.0, math.nan)]:
        if math.isfinite(y):
            piece.append(f"{_lay_across(x, ends):.1f},{HEIGHT - 4 - (y - low) * up:.1f}")
        elif piece:
            yield " ".join(piece if len(piece) > 1 else piece * 2)
            piece = []


def _lay_across(step: float, ends: tuple[int, int]) -> float:
    """Return where a step lies across a curve."""
    first, last = ends
    return WIDTH * (step - first) / max(1, last - first)


def _mark(
    found: Sequence[tuple[Invariant, Sequence[Finding], str]], ends: tuple[int, int]
) -> Iterator[StepMark]:
    """Yield the steps of findings, each with the numbers that its findings have in the lists."""
    at: dict[int, list[tuple[int, str, str]]] = {}
    for number, (made, findings, kind) in enumerate(found, 1):
        for finding in findings:
            step = finding.at.step
            if step is not None and ends[0] <= step <= ends[1]:
                at.setdefault(step, []).append((number, made.name, kind))
    for step, each in at.items():
        numbers, names, kinds = zip(*each, strict=True)
        title = f"step {step}: {', '.join(names)}"
        yield StepMark(_lay_across(step, ends), numbers, title, min(kinds))
