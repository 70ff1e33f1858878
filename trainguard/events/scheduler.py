"""The event of a learning-rate scheduler: what became of it over a run."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler(Event):
    """
    One learning-rate scheduler over the whole run.

    optimizer: the optimizer it drives, as Steps name it; "" where that one never stepped.
    calls: how often it was advanced; early: how often before its optimizer's first step.
    conditional: whether the file that made it has a line that advances a scheduler, and the rate
        that it began with was the full one, so that it may have waited for something.
    inert: whether that file has no line at all that could advance one.
    length, setting: after how many advances its schedule is over, 0 where that is unknown or where
        another scheduler has it for a part, and the setting that says so ("T_max").
    base: the rates that it multiplies with what a function returns (LambdaLR); empty elsewhere.
    mode: "min" or "max" where it is told a metric (ReduceLROnPlateau); expression: what the line
        that advances it tells it ("val_loss"), as far as that is a plain name.
    metrics: what it was told, each with the clock; the first 256.
    """

    name: str
    optimizer: str = ""
    calls: int = 0
    early: int = 0
    conditional: bool = False
    inert: bool = False
    length: int = 0
    setting: str = ""
    base: tuple[float, ...] = ()
    mode: str = ""
    expression: str = ""
    metrics: tuple[tuple[int, float], ...] = ()
    source: str = ""
