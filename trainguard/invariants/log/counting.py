"""Judgements of how the rows of a log are counted."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, Place, integer, portion
from trainguard.events.base import Event
from trainguard.events.log import Repeat
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import at, rows, unit
from trainguard.invariants.loop.evidence import steps_from
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_FEW = 3  # steps that are said twice: one or two may be the end of a part, said again
_GAP = 10.0  # times the usual distance between two rows
_LEAST_ROWS = 20


@invariant("log", evidence=steps_from(1))
def steps_are_logged_once(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A log records each step of a run once.

    Judges: steps for which one column has several values without its counter having gone back, or
        that two counters in turns have both. Broken where the values differ at 3 steps or more,
        but not at all.
    Allows: a step that is said again after a resume; two such steps. A note where every step is
        said as often, as by each process or micro-batch, where all values agree, and in printed
        output, whose lines may be drawn again.
    Misses: two runs whose steps never meet.
    Why: two processes that write into one log, or a counter that stands still, make curves that
        are no curve of any run.
    Source: tensorflow/tensorboard README, "How should I deal with TensorFlow restarts?"; W&B's
        guide to resuming, which drops steps that are logged again.
    """
    every = [told for told in events(trace, Repeat) if told.steps >= _FEW]
    differ = [told for told in every if told.alike < told.steps]
    for told in differ or every:  # a rate that agrees says nothing beside a loss that does not
        regular = told.most == told.least
        alike = told.alike == told.steps
        sure = told.exact and not regular and not alike
        yield Finding(
            f"steps of `{trace.subject}` are logged more than once",
            Place(f"{told.column}, {unit(trace)} {told.step}", step=told.step),
            portion(told.steps, told.of, f"{unit(trace)}s")
            + f" have several values, as {told.values[0]:.4g} and {told.values[1]:.4g}",
            "one value for each",
            why="each is said as often: perhaps by each process, or for each micro-batch"
            if regular
            else "perhaps two runs write into one log, or its counter does not always count",
            rank=Rank.BROKEN if sure else Rank.NOTE,
            event=told,
        )


@invariant("log", evidence=steps_from(_LEAST_ROWS))
def no_step_is_missing(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A log covers the whole run without gaps.

    Judges: the distance between two rows, in logs of 20 rows or more; and whether the file has an
        earlier run, which is left out.
    Allows: 10 times (limit) the usual distance; what a long log was thinned out by. What is found
        is a note.
    Misses: rows that are missing at the ends, or now and then.
    Why: what a log does not show was not necessarily well: a process that hung, a disk that was
        full, or a resume from a later checkpoint than the log.
    Source: tensorpack/tensorpack issue 364 (a counter that leaps at a resume).
    """
    left = trace.conditions.get("rows left out")
    if isinstance(left, int) and left:
        yield _two_runs(trace, left)
    told = [row for row in rows(trace) if row.losses] or list(rows(trace))
    gaps = [(a, b) for a, b in pairwise(told) if a.span == 1]
    if len(gaps) < _LEAST_ROWS:
        return
    usual = median(b.step - a.step for a, b in gaps)
    most = trace.limit("no_step_is_missing", _GAP)
    wide = [(a, b) for a, b in gaps if b.step - a.step > most * usual]
    if wide:
        a, b = max(wide, key=lambda pair: pair[1].step - pair[0].step)
        yield note(
            f"the log of `{trace.subject}` has a gap",
            at(trace, a) + f" to {b.step}",
            integer(b.step - a.step, f"{unit(trace)}s") + " without a row",
            "at most " + number(most * usual, f"{unit(trace)}s") + f": the usual is {usual:g}",
            why="perhaps it was resumed from a later checkpoint than the log, or could not write",
            event=a,
        )


def _two_runs(trace: Trace[Any], left: int) -> Finding:
    """Return the note of a file that has an earlier run as well."""
    files = trace.conditions.get("files")
    source = str(files[0]) if isinstance(files, tuple) and files else ""
    return note(
        f"the log of `{trace.subject}` has an earlier run too, which is not judged",
        measured=integer(left, "rows") + " before the counter begins again",
        allowed=Measure("one run in a log", 1, "runs"),
        why="the counter begins again at its start: give the earlier run a file of its own",
        source=source,
    )
