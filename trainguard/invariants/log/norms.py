"""Judgement of the gradient norms of a log."""

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer, portion
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.invariants.log.wording import NORMS, at, rows
from trainguard.invariants.wording import number

_FEW = 5
_FOR_GOOD = 10
_ALL = 0.9  # of the rows


@invariant("log", evidence=NORMS)
def logged_norm_is_measured(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A logged gradient norm is a real measurement, not always zero, nan or constant.

    Judges: logs of 5 rows with a norm or more: broken where the norm is exactly 0 in all of them,
        or no number in the last 10; a note where it is the same in 90 % (limit) of them.
    Allows: single norms that are no number, as a gradient scaler skips them; zeros that may be
        rounded (a note).
    Misses: the norm of a part of the model, or of another moment.
    Why: a norm that is taken after zero_grad is 0.0 for ever, and one taken after clipping is the
        limit: the explosion that it should have shown is not seen.
    Source: the post-mortem multi-domain-vjepa3d, problem 1; Lightning-AI/pytorch-lightning issue
        272.
    """
    told = [row for row in rows(trace) if row.norm == row.norm]
    if len(told) < _FEW:
        return
    values = [row.norm for row in told]
    lost = len([*takewhile(lambda v: not isfinite(v), reversed(values))])
    often, times = Counter(values).most_common(1)[0]
    if lost >= _FOR_GOOD:
        yield Finding(
            f"the gradient norm of `{trace.subject}` is no longer finite",
            at(trace, told[-lost]) + " and all after it",
            portion(lost, len(told), "rows"),
            "finite",
            why="the gradients are nan: a gradient scaler then skips each step, and nothing learns",
            event=told[-lost],
        )
    elif not any(values):
        rounded = bool(trace.conditions.get("rounded norm"))
        yield Finding(
            f"the gradient norm that `{trace.subject}` logs is zero throughout",
            at(trace, told[0]) + f" to {told[-1].step}",
            ("rounded to " if rounded else "exactly ") + integer(0) + f" in all {len(told)} rows",
            "above " + integer(0),
            why="it may be printed with too few digits, or taken after zero_grad()"
            if rounded
            else "it may be taken after zero_grad(), or of parameters that get no gradient",
            rank=Rank.NOTE if rounded else Rank.BROKEN,
            event=told[0],
        )
    elif times > trace.limit("logged_norm_is_measured", _ALL) * len(told):
        yield note(
            f"the gradient norm that `{trace.subject}` logs is nearly always the same",
            at(trace, told[0]),
            number(often) + f" in {times} of {len(told)} rows",
            Measure(f"at most {100 * _ALL:g} % alike", 100 * _ALL, "%"),
            why="it may be taken after clipping: clip_grad_norm_ returns the norm before it",
            event=told[0],
        )
