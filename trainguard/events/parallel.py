"""The event of one step that is made on one process and on several: how alike they are."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness(Event):
    """
    One quantity of a step on several processes, held against the same on one process.

    quantity: "loss", "gradient" or "update". place: the parameter; "" of a loss. world: how many
    processes; rank: the one that is farthest off, whose value it is.
    value, reference: there and on one process: a norm, or the loss in the mean over processes.
    whole: the norm over all parameters on one process, for what is too small to be held exactly.
    apart: how far off the rank is; between: how far it is from another rank; mean, sum: how far off
        the mean and the sum over all ranks are.
    ratio, stray: the factor that explains most of the difference, and how far off it still is then,
        as a share of what is explained.
    precision: the spacing of numbers near one in the coarsest dtype that was computed in.
    rounding: how far off an update may be because parameters are rounded.
    shards: the factor of what each rank holds of all parameters, where these explain a difference.
    lone_statistics: whether normalisation takes its statistics from the rows of each rank.
    """

    quantity: str
    world: int
    place: str = ""
    rank: int = 0
    value: float = 0.0
    reference: float = 0.0
    whole: float = 0.0
    apart: float = 0.0
    between: float = 0.0
    mean: float = 0.0
    sum: float = 0.0
    ratio: float = 1.0
    stray: float = 0.0
    precision: float = 0.0
    rounding: float = 0.0
    shards: tuple[float, ...] = ()
    lone_statistics: bool = False
