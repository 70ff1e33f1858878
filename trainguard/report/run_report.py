"""What a command prints of one run: what is broken, what was judged, and what was measured."""

from collections import Counter
from collections.abc import Iterator, Sequence

from trainguard.judging.baseline import Baseline
from trainguard.judging.verdict import Verdict
from trainguard.report.session_summary import OUTCOMES
from trainguard.report.text import WIDTH, render_note, render_rows, render_verdict

_REASONS = 4  # that are told of without -v
_WORDS = {"stale": "with a stale excuse"}


def render_report(
    verdicts: tuple[Verdict, ...],
    head: str,
    rows: Sequence[tuple[str, str]],
    *,
    strict: bool,
    by_name: bool,
    others: str = "",
) -> str:
    """
    Return all that is printed of a run: what is broken, then what was judged and measured.

    others: what only other processes have found, as text.
    """
    notes = [
        render_note(finding, verdict.invariant)
        for verdict in verdicts
        if verdict.outcome in ("passed", "broken", "known") and not strict
        for finding in verdict.notes
    ]
    known = [render_note(f, v.invariant) for v in verdicts if by_name for f in v.known]
    excused = [f"{v.invariant.name}: {v.reason}" for v in verdicts if v.outcome == "excused"]
    told = [*rows, *unjudged_as_rows(verdicts, by_name=by_name)]
    told += [*(("known", k) for k in known), *(("excused", e) for e in excused)]
    told += [*(("note", n) for n in notes)]
    parts = [" trainguard ".center(WIDTH, "=")]
    parts += [f"{render_verdict(v)}\n" for v in verdicts if v.fails]
    parts += [f"{others}\n"] if others else []
    return "\n".join([*parts, render_rows([judged_text(verdicts), head], told)])


def judged_text(verdicts: Sequence[Verdict]) -> str:
    """Count the invariants that had something to judge, and what became of them."""
    counts = Counter[str](verdict.outcome for verdict in verdicts)
    judged = len(verdicts) - counts.pop("skipped", 0)
    told = [f"{counts[o]} {_WORDS.get(o, o)}" for o in OUTCOMES if counts[o] or o == "passed"]
    return f"{judged} invariant{'' if judged == 1 else 's'} judged: {', '.join(told)}"


def unjudged_as_rows(verdicts: tuple[Verdict, ...], *, by_name: bool) -> Iterator[tuple[str, str]]:
    """Yield how many invariants had nothing to judge, and why: the commonest reasons, or all."""
    names: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome == "skipped":
            names.setdefault(verdict.reason, []).append(verdict.invariant.name)
    reasons = sorted(names, key=lambda reason: -len(names[reason]))
    if by_name:
        yield from (("unjudged", f"{why}: {', '.join(names[why])}") for why in reasons)
    elif reasons:
        left = len(reasons) - _REASONS
        more = f"; and {left} more reason{'s' * (left > 1)}, see -v" if left > 0 else ""
        told = "; ".join(f"{why} ({len(names[why])})" for why in reasons[:_REASONS])
        yield "unjudged", f"{sum(map(len, names.values()))} had nothing to judge: {told}{more}"


def baseline_as_rows(baseline: Baseline) -> list[tuple[str, str]]:
    """Say how many findings a baseline knows, or now has in its file."""
    if baseline.path is None:
        return []
    known = baseline.renewed() if baseline.writes else baseline.entries & baseline.seen.keys()
    count = f"{len(known)} finding{' is' if len(known) == 1 else 's are'}"
    if baseline.writes:
        return [("baseline", f"{count} written to {baseline.name}: from now on only others fail")]
    return [("baseline", f"{count} known from {baseline.name}")]
