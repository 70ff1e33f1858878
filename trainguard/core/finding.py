"""What broke, as data: a Finding is one violation of one invariant, ready to be rendered."""

from dataclasses import dataclass
from enum import StrEnum

from trainguard.events.base import Event


class Rank(StrEnum):
    """How sure a finding is: *broken* fails the item, a *note* only under `--trainguard-strict`."""

    BROKEN = "broken"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One violation. Every field but the summary may be empty, and an empty one is not shown.

    summary: one sentence without numbers, the subject's name in backticks.
    at: where in the subject: an input's coordinate, a step, a parameter group.
    measured, allowed: the two numbers that disagree, in the same unit and precision.
    curve: a sparkline of what was measured.
    smallest: the smallest counterexample, as code that can be pasted.
    why: the likely cause; it hedges when it is a guess.
    event: the event of the trace that shows it; the shrinker starts from there.
    elsewhere: the other places at which the same was found.
    source: `file:line` of the user's code that did it, where that is known.
    """

    summary: str
    at: str = ""
    measured: str = ""
    allowed: str = ""
    smallest: str = ""
    why: str = ""
    rank: Rank = Rank.BROKEN
    event: Event | None = None
    elsewhere: tuple[str, ...] = ()
    source: str = ""
    curve: str = ""
