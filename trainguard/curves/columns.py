"""Columns of a recorded run that can be kept as curves."""

from math import isnan
from typing import Any

from trainguard.curves.curve import CONDITIONS, Curve
from trainguard.events.columns import COLUMNS
from trainguard.events.loop import Step
from trainguard.events.trace import Trace


def curves(trace: Trace[Any], column: str) -> tuple[Curve, ...]:
    """
    Return a column of a run as curves: one for each optimizer, the one of most steps first.

    That one goes by the column's name, the others have their optimizer's with it.
    """
    steps: dict[str, list[Step]] = {}
    for event in trace:
        if isinstance(event, Step):
            steps.setdefault(event.optimizer, []).append(event)
    named = sorted(steps.items(), key=lambda own: -sum(step.span for step in own[1]))
    made = [
        _curve(f"{column} of {name}" if rank else column, column, own, trace)
        for rank, (name, own) in enumerate(named)
    ]
    return tuple(curve for curve in made if curve.steps)


def noun(column: str) -> str:
    """Return how a report calls the column of a curve."""
    name, _, optimizer = column.partition(" of ")
    return f"{COLUMNS[name].noun}{f' of {optimizer}' if optimizer else ''}"


def _curve(name: str, column: str, steps: list[Step], trace: Trace[Any]) -> Curve:
    """Return the curve of one optimizer's steps; those that a scaler skipped are left out."""
    of = COLUMNS[column]
    pairs = [(step.step, of.value(step), of.known(step)) for step in steps if not step.skipped]
    kept = [(step, float(value)) for step, value, known in pairs if known or not isnan(value)]
    return Curve(
        name,
        tuple(step for step, _ in kept),
        (tuple(value for _, value in kept),),
        (),
        steps[-1].step + steps[-1].span if steps else 0,
        {key: _text(trace.conditions.get(key)) for key in CONDITIONS},
    )


def _text(value: Any) -> str:
    """Write a condition as a text."""
    if isinstance(value, tuple):
        return " ".join(_text(entry) for entry in value)
    return "" if value is None else str(value)
