"""Columns of a recorded run that can be kept as curves, and a curve held against its snapshot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Final

from trainguard.events.base import Event
from trainguard.events.loop import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Event):
    """
    One curve of a run, and the snapshot that is kept of it, both as the text of a file.

    column: what it is of; `found` is empty where the run has no such column.
    kept: the snapshot; empty where there is none. place: its file, as reports write it.
    refused: why the curve was not blessed, though it was to be.
    apart: the common snapshot, where the curve was just blessed for one version of torch alone.
    """

    column: str
    found: str = ""
    kept: str = ""
    place: str = ""
    refused: str = ""
    apart: str = ""


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
