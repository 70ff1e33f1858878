"""Judgements of a transform and its inverse."""

from collections.abc import Iterator, Sequence

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loader import Serving
from trainguard.events.trace import Trace
from trainguard.invariants.wording import number

_SLACK = 1.02  # rounding, of a half step of 16 bits in float32
_ROUNDING = 1e-5
_FEW = 16  # values that come back


@invariant("loader", probe="transform", needs=("transform",))
def transform_round_trips(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The inverse of a transform recovers its input, up to rounding or quantisation.

    Judges: 260,000 values of the declared range, both ends among them, in random order, and small
        batches of odd and even lengths. With `tolerance` promised, the largest error against it
        (limit: the same). A note where values come back on one side of what they were, and where
        fewer than 16 different ones do.
    Allows: without a promise, rounding (1e-5 of the largest value); where the transform quantises,
        half a step between the codes on its own larger side, as with mu-law's uneven steps, and a
        whole step at the two ends, where it clips. Shapes that the transform refuses.
    Misses: errors below a step; transforms that are wrong in the same way as their inverse.
    Why: a decoder with another number of levels, or interleaved channels taken apart along another
        axis, gives plausible noise.
    Source: ibab/tensorflow-wavenet pull request 155 (mu-law encoded with an offset that the decoder
        does not have).
    """
    yield from _spoilt(trace)
    promised = trace.promise("tolerance")
    if promised is None:
        promised = trace.promise("limit:transform_round_trips")
    if promised is None:
        yield from _find_spoilt_codes(trace)
    else:
        over = [e for e in _of(trace, "error") if not e.measured <= promised * (1 + _ROUNDING)]
        yield from _far(trace, over, number(promised) + ", as promised")


def _spoilt(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the findings of what comes back in another shape, or not as numbers."""
    for reshaped in _of(trace, "shape")[:1]:
        yield Finding(
            f"the inverse transform of `{trace.subject}` does not restore the shape",
            reshaped.at,
            reshaped.detail,
            "the shape that was put in",
            why="the inverse may be for another layout, or leave in what the transform added",
            event=reshaped,
        )
    for bad in _of(trace, "bad")[:1]:
        yield Finding(
            f"the transform of `{trace.subject}` and its inverse give values that are not finite",
            bad.at,
            portion(bad.measured, bad.reference, "values") + " not finite",
            portion(0, bad.reference, "values") + " not finite",
            why="the declared range may be wider than what the transform is made for",
            event=bad,
        )


def _find_spoilt_codes(trace: Trace[Event]) -> Iterator[Finding]:
    """Judge by the steps of the codes, where there is no promise."""
    levels, trips = _of(trace, "levels"), _of(trace, "trip")
    over = [e for e in trips if not e.measured <= _SLACK * e.reference]
    unit = "a step of the codes there" if levels else "rounding"
    if over:
        worst = max(over, key=lambda event: event.measured / event.reference)
        yield from _far(trace, over, number(worst.reference) + f", {unit}")
        return
    yield from _one_sided(trace)
    if levels and levels[0].measured < _FEW:
        yield note(
            f"few different values of `{trace.subject}` come back from its transform",
            "",
            integer(levels[0].measured) + " different values",
            integer(_FEW) + " different values",
            why="perhaps the values are made whole numbers before they are scaled",
            event=levels[0],
        )


def _one_sided(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield the note about values that come back more than half a step away."""
    halves = [e for e in _of(trace, "half") if not e.measured <= _SLACK * e.reference]
    if halves:
        worst = max(halves, key=lambda event: event.measured / event.reference)
        yield note(
            f"`{trace.subject}` comes back from its transform on one side of what it was",
            worst.at,
            number(worst.measured) + f" ({worst.detail})",
            number(worst.reference) + ", half a step of the codes there",
            why="perhaps the codes are cut off, not rounded, and decoded at their edge: a constant"
            " offset of half a step",
            event=worst,
        )


def _far(trace: Trace[Event], over: Sequence[Serving], allowed: str) -> Iterator[Finding]:
    """Yield the finding of values that are too far from what they were."""
    if not over:
        return
    small = over[1:] or over  # the first shape has very many values
    worst = max(small, key=lambda event: event.measured / event.reference)
    moved = worst.detail.endswith("moved")
    yield Finding(
        f"the inverse transform of `{trace.subject}` does not restore the values",
        worst.at,
        number(worst.measured) + f" ({worst.detail.removesuffix(', moved')})",
        allowed,
        why="all values are there, at other places: perhaps taken apart along another axis than"
        " they were put together"
        if moved
        else "the transform and the inverse may not agree on levels, scale, offset or axis",
        event=worst,
    )


def _of(trace: Trace[Event], quantity: str) -> list[Serving]:
    """Return the events of one quantity."""
    return [e for e in trace if isinstance(e, Serving) and e.quantity == quantity]
