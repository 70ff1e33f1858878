"""`trainguard compare A B`: two trainings side by side, run in turns, and what is worse in B."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from trainguard.command.compare.interval import Change, Margin
from trainguard.command.compare.pairing import Comparison, compare_sides
from trainguard.command.compare.side import Side
from trainguard.command.exit import CLEAN, FAILED, FOUND, USAGE, with_options
from trainguard.command.output import say, write_file
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.report import log_summary
from trainguard.report.json import check_apart
from trainguard.report.run_summary import duration_text, finite, headline, size_text, summarize_run
from trainguard.report.text import WIDTH, render_cause, render_rows

VERSION: Final = 1
REPEATS: Final = 5  # with fewer, the interval is too wide for most differences
NAMES: Final = ("A", "B")
_SHOWN: Final = 12  # conditions that differ
_FAR: Final = 10.0  # times A: an end of an interval that lies beyond says nothing by its figure
Runs = tuple[list[Trace[Any]], list[Trace[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """
    What the command line asks for: two sides, how often each is run, and what B may be worse by.

    seconds: how long one run may take. json, plot: files to write.
    """

    a: Side
    b: Side
    repeats: int | None = None
    steps: int | None = None
    seconds: float = math.inf
    margins: Mapping[str, Margin] = field(default_factory=dict)
    json: Path | None = None
    plot: Path | None = None


def compare(contest: CompareRequest, out: TextIO, err: TextIO) -> int:
    """
    Run both sides in turns, report how they differ, and return the exit code.

    Raises DeclarationError, before anything is run, for what cannot be meant.
    """
    check_apart([contest.json, contest.plot], [*contest.a.files, *contest.b.files])
    pairs = _pairs(contest)
    draw = _drawing(contest.plot)
    try:
        runs = run_pairs(contest, pairs, err)
    except SubjectError as fault:
        told = (f"{fault.sentence}.", with_options(fault.remedy), render_cause(fault))
        say("\n".join(part for part in told if part), err)
        return FAILED
    found = compare_sides(*runs, contest.margins)
    written = True
    if contest.json is not None:
        written &= write_file(contest.json, lambda: document(contest, found, runs), err)
    if contest.plot is not None and draw is not None:
        shown = partial(draw, found, (contest.a.text, contest.b.text))
        written &= write_file(contest.plot, shown, err)
    written &= say(report(contest, found, runs), out, err) or contest.json is not None
    return FOUND if found.worse else CLEAN if written else USAGE


def run_pairs(contest: CompareRequest, pairs: int, err: TextIO) -> Runs:
    """Return the runs of both sides, made in turns: A B, B A, A B, so that no drift favours one."""
    runs: Runs = ([], [])
    sides = (contest.a, contest.b)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            name = f"{NAMES[which]} ({sides[which].text})"
            if err.isatty() and not sides[which].traces:
                err.write(f"trainguard: run {pair + 1} of {pairs} of {name}\n")
            try:
                trace = sides[which].run(pair, contest.steps, contest.seconds)
                _check_steps(trace)
            except SubjectError as fault:
                told = SubjectError(f"{name} could not be run: {fault.sentence}", fault.remedy)
                raise told from fault.__cause__
            runs[which].append(trace)
    return runs


def report(contest: CompareRequest, found: Comparison, runs: Runs) -> str:
    """Return all that is printed: both sides, then how B differs from A."""
    sides = (contest.a, contest.b)
    heads = [
        f"{name}  {_headline(side, made[0])}"
        for name, side, made in zip(NAMES, sides, runs, strict=True)
    ]
    # What a script was called with stands above already.
    told = [row for row in found.differs if row[0] != "arguments" or not sides[0].words]
    rows = [("differs", f"{name}: {a} in A, {b} in B") for name, a, b in told[:_SHOWN]]
    if len(told) > _SHOWN:
        rows.append(("differs", f"and {len(told) - _SHOWN} more: --json FILE has them all"))
    if found.until is not None:
        rows.append(
            ("up to", f"{runs[0][0].conditions['unit']} {found.until:,}: as far as both go")
        )
    rows.append(("paired", _describe_pairing(found)))
    rows += [(change.measure, _describe_change(change)) for change in found.changes]
    rows.append(("losses", _describe_parting(found)))
    return "\n".join([" trainguard ".center(WIDTH, "="), render_rows(heads, rows)])


def _headline(side: Side, run: Trace[Any]) -> str:
    """Return one sentence on a run of a side."""
    if "log" in run.conditions:
        return log_summary.headline(replace(run, subject=side.text))
    # Without its pace, which is a mean: the time below is a quartile.
    return headline(replace(summarize_run(run), pace=math.nan), side.text)


def document(contest: CompareRequest, found: Comparison, runs: Runs) -> str:
    """Return the JSON document of a comparison."""
    plain = {
        "version": VERSION,
        "a": contest.a.text,
        "b": contest.b.text,
        "runs": found.runs,
        "repeat_bit_for_bit": found.alike,
        "first_step_that_differs": found.parted,
        "differs": [{"condition": n, "a": a, "b": b} for n, a, b in found.differs],
        "changes": [_plain(change) for change in found.changes],
        "worse": [change.measure for change in found.worse],
        "seconds": [[finite(summarize_run(trace).seconds) for trace in side] for side in runs],
    }
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _check_steps(trace: Trace[Any]) -> None:
    """Raise for a trace without a training step."""
    if not any(isinstance(event, Step) for event in trace):
        raise SubjectError("it made no training step")


def _plain(change: Change) -> dict[str, Any]:
    """Return a change in plain values: what is not a finite number is null."""
    row = {name: value for name, value in asdict(change).items() if name != "margin"}
    row = {n: finite(value) if isinstance(value, float) else value for n, value in row.items()}
    stated = None if change.margin is None else change.margin.text
    return {**row, "share": finite(change.share), "margin": stated}


def _pairs(contest: CompareRequest) -> int:
    """Return how many pairs are made; raises where the two sides do not have so many."""
    held = [len(side.traces) for side in (contest.a, contest.b) if side.traces]
    if len(set(held)) > 1:
        raise DeclarationError(
            f"A holds {held[0]} traces and B holds {held[1]}. Give as many of each: they are paired"
            " in the order of their names."
        )
    if not held:
        return contest.repeats or REPEATS
    if contest.repeats is not None and contest.repeats != held[0]:
        raise DeclarationError(
            f"--repeats {contest.repeats} cannot be: there are {held[0]} runs in the traces."
        )
    if contest.steps is not None and len(held) == 2:
        raise DeclarationError(f"--steps {contest.steps} cannot be: both sides are traces.")
    return held[0]


def _drawing(plot: Path | None) -> Any:
    """Return what draws the picture, where one is wanted; raises where it cannot be drawn."""
    if plot is None:
        return None
    from trainguard.command.compare.picture import draw

    return draw


def _describe_pairing(found: Comparison) -> str:
    """Say what was paired."""
    if found.runs == 1:
        return "one run of each: says nothing of other seeds, nor of the noise between runs"
    again = ", which repeat one training bit for bit" if found.alike else ""
    return f"{found.runs} runs of each, in turns{again}"


def _describe_parting(found: Comparison) -> str:
    """Say from which step on the losses of the first pair differ."""
    if not found.meet:
        return "have no step in common"
    if found.parted is None:
        more = "" if found.steps[0] == found.steps[1] else " as far as both go"
        return f"bit for bit alike{more}"
    return f"differ from step {found.parted}"


def _describe_change(change: Change) -> str:
    """Say how a measure differs, how sure that is, and what was allowed."""
    write = {"time": duration_text, "memory": size_text}.get(change.measure, _number)
    text = f"{write(change.a)} -> {write(change.b)}"
    if math.isfinite(change.b):
        text += f", {_share(change.by, change.a)}"
        if change.low < change.high:
            ends = f"{_bound(change.low, change.a)} to {_bound(change.high, change.a)}"
            text += f" (99 %: {ends}, {change.pairs} {change.paired})"
    if change.margin is None:
        return text
    verdict = {
        "within": f"within the {change.margin.text} allowed",
        "worse": f"WORSE than the {change.margin.text} allowed",
        "open": f"may be worse than the {change.margin.text} allowed: too few {change.paired} to"
        " tell",
    }[change.outcome]
    return f"{text}: {verdict}"


def _bound(difference: float, of: float) -> str:
    """Write an end of an interval; where it is far out, only that it is."""
    if of and abs(difference) > _FAR * abs(of):
        return f"more than {_FAR:+.0%}" if difference > 0 else f"less than {-_FAR:+.0%}"
    return _share(difference, of)


def _share(difference: float, of: float) -> str:
    """Write a difference as a share, or as it is where there is nothing to divide by."""
    return f"{difference / abs(of):+.2%}" if of else f"{difference:+.3g}"


def _number(value: float) -> str:
    """Write a loss."""
    return f"{value:.6g}"
