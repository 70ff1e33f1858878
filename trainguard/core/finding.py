"""What broke, as data: a Finding is one violation of one invariant, ready to be rendered."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from trainguard.core.measure import Measure, Place
from trainguard.events.base import Event


class Rank(StrEnum):
    """How sure a finding is: *broken* fails the item, a *note* only under `--trainguard-strict`."""

    BROKEN = "broken"
    NOTE = "note"


@dataclass(frozen=True, slots=True, init=False)
class Finding:
    """
    One violation. Every field but the summary may be empty, and an empty one is not shown.

    summary: one sentence without numbers, the subject's name in backticks.
    at: where in the subject: an input's coordinate, a step, a parameter group; plain words do.
    measured, allowed: the two numbers that disagree, in the same unit and precision; plain words
        do where there is no number.
    curve: a sparkline of what was measured.
    smallest: the smallest counterexample, as code that can be pasted.
    why: the likely cause; it hedges when it is a guess.
    event: the event of the trace that shows it; the shrinker starts from there.
    elsewhere: the other places at which the same was found.
    source: `file:line` of the user's code that did it, as the event has it where it is not given;
        it is kept in `at`.
    """

    summary: str
    at: Place
    measured: Measure
    allowed: Measure
    smallest: str
    why: str
    rank: Rank
    event: Event | None
    elsewhere: tuple[Place, ...]
    curve: str

    def __init__(
        self,
        summary: str,
        at: str = "",
        measured: str = "",
        allowed: str = "",
        *,
        smallest: str = "",
        why: str = "",
        rank: Rank = Rank.BROKEN,
        event: Event | None = None,
        elsewhere: tuple[str, ...] = (),
        source: str = "",
        curve: str = "",
    ) -> None:
        place = Place.of(at)
        # A finding that is made of another one keeps that one's place.
        place = place.in_code(source or place.source or getattr(event, "source", ""))
        numbers = Measure.of(measured), Measure.of(allowed)
        others = tuple(map(Place.of, elsewhere))
        values = (summary, place, *numbers, smallest, why, rank, event, others, curve)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def source(self) -> str:
        """The line of the user's code that did it, as `file:line`."""
        return self.at.source


note = partial(Finding, rank=Rank.NOTE)
