"""What `trainguard mutate` prints and writes: what noticed which mistake, and what nothing did."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from trainguard.command.mutate.result import OUTCOMES, Result, Survey
from trainguard.report.formats.html_format import fill_page
from trainguard.report.json import render
from trainguard.report.text import WIDTH, render_rows

VERSION: Final = 1
_NAMED: Final = 4  # operators of which a row tells by name
_HARM: Final = ("ends worse than from other seeds", "ends no worse than from other seeds")
_DIFF: Final = 12  # lines of a diff that are shown


def render_survey(survey: Survey) -> str:
    """Return all that is printed: the survivors with their diffs, then the table."""
    head, rows = _summarize(survey)
    parts = [" trainguard ".center(WIDTH, "=")]
    parts += [f"{_survivor(survey, result)}\n" for result in survey.of_outcome("survived")]
    return "\n".join([*parts, render_rows(head, rows)])


def survey_as_page(survey: Survey) -> str:
    """Return a page of a survey: survivors with what would notice them, then what was noticed."""
    head, rows = _summarize(survey)
    return fill_page(
        "mutation_page.html",
        script=survey.script,
        headline=head[-1],
        rows=rows,
        survivors=survey.of_outcome("survived"),
        harm=_harm(survey),
        killed=survey.of_outcome("killed"),
    )


def _summarize(survey: Survey) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the headlines of a survey, and its rows: who noticed how many."""
    counts = {outcome: len(survey.of_outcome(outcome)) for outcome in OUTCOMES}
    planted = counts["killed"] + counts["survived"]
    killed, by_run = survey.of_outcome("killed"), sum(bool(r.run) for r in survey.results)
    guards = sum(bool(r.guards) for r in survey.results)
    alone = sum(1 for r in killed if r.guards and not r.run)
    mistakes = f"{planted} mistake{'s' * (planted != 1)}"
    head = [
        f"{mistakes} in {survey.script}: {len(killed)} noticed, {counts['survived']} not",
        f"{survey.applied} of {survey.of} operators apply",
    ]
    rows = [("run", f"{by_run} of {planted} noticed by `trainguard run`")]
    if survey.guards:
        rows += [
            ("guards", f"{guards} of {planted} noticed by {survey.guards} guards, {alone} alone")
        ]
    rows += _noticed(survey)
    if survey.compared:
        worse = len(survey.compared) - len(survey.harmless)
        told = f"{worse} of {len(survey.compared)} unnoticed end worse than from other seeds"
        left = counts["survived"] - len(survey.compared)
        rows += [("harm", told + f", {left} more cannot be compared" * bool(left))]
    if counts["equivalent"] or counts["crashed"]:
        told = f"{counts['equivalent']} that change nothing that is recorded, printed or written, "
        rows += [("dropped", f"{told}{counts['crashed']} that fail or hang by themselves")]
    if counts["left"]:
        rows += [("not run", f"{counts['left']} for lack of time: the same command goes on")]
    for name, names in (("as it is", survey.broken), ("as it is", survey.failing)):
        rows += [(name, f"{', '.join(names)} fails without any mistake, and notices none")] * bool(
            names
        )
    rows += [("unread", text) for text in survey.unread]
    return head, rows


def survey_as_json(survey: Survey) -> str:
    """Return the JSON document of a survey."""
    plain = asdict(survey)
    counts = {outcome: len(survey.of_outcome(outcome)) for outcome in OUTCOMES}
    return render({"version": VERSION, "counts": counts, **plain})


def _noticed(survey: Survey) -> list[tuple[str, str]]:
    """Return a row for each invariant and guard that noticed something, the busiest first."""
    by: dict[str, list[str]] = defaultdict(list)
    for result in survey.of_outcome("killed"):
        for name in (*result.run, *result.guards):
            by[name].append(result.operator.partition(".")[2])
    busiest = sorted(by, key=lambda name: (-len(by[name]), name))
    return [("noticed", f"{len(by[n])} by {n}: {_few(by[n])}") for n in busiest]


def _harm(survey: Survey) -> dict[str, str]:
    """Say of the survivors of which it is known whether they do harm."""
    return {key: _HARM[key in survey.harmless] for key in survey.compared}


def _few(names: Sequence[str]) -> str:
    """Name the first few, each once, and count the others."""
    once = list(dict.fromkeys(names))
    more = len(once) - _NAMED
    return ", ".join(once[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _survivor(survey: Survey, result: Result) -> str:
    """Lay out a mistake that nothing noticed: what it is, where, and what would notice it."""
    lines = [line for line in result.diff.splitlines()[3:] if line[:1] in ("+", "-")]
    more = len(lines) - _DIFF
    shown = [*lines[:_DIFF], *([f"... and {more} more lines"] if more > 0 else [])]
    head = f"{result.operator.partition('.')[2]}: {result.title}"
    rows = [("at", f"{result.path}:{result.line}")]
    rows += [("noted", f"{', '.join(result.noted)}: a note, which fails with --strict")] * bool(
        result.noted
    )
    harm = _harm(survey)
    rows += [("harm", harm[result.key])] if result.key in harm else []
    rows += [("notices", result.proposal)] * bool(result.proposal)
    diff = [f"    {line}" for line in shown]
    return "\n".join([render_rows([head], []), *diff, render_rows([], rows)])
