"""Columns of a recorded run that can be kept as curves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Final

from trainguard.curve import CONDITIONS, Curve
from trainguard.step import Step
from trainguard.trace import Trace


@dataclass(frozen=True, slots=True)
class Column:
    """
    One column: what of a step it is, and how reports call it.

    value: its value in a step; nan where the step has none, unless `known` says otherwise.
    known: whether a nan is a value that is not finite, and not one that is not known.
    """

    noun: str
    value: Callable[[Step], float]
    known: Callable[[Step], bool] = lambda _: False


COLUMNS: Final[Mapping[str, Column]] = {
    "loss": Column("loss", lambda step: step.loss, lambda step: bool(step.losses)),
    "grad_norm": Column("gradient norm", lambda step: step.norm, lambda step: step.received > 0),
    "rate": Column("rate", lambda step: max(step.rates, default=nan)),
    "update_norm": Column("update norm", lambda step: step.update),
    "weight_norm": Column("weight norm", lambda step: step.weight),
    "memory": Column("memory", lambda step: float(step.memory) if step.memory else nan),
}
ON_ACCELERATORS: Final = ("memory",)  # elsewhere it is that of the process, whatever ran in it


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
