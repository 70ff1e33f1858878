"""What is recorded: an Event is one observed fact, in numbers, strings and tuples."""

from dataclasses import dataclass

Plain = None | bool | int | float | str | tuple["Plain", ...]

EVERYTHING = "*"  # among what is not known of a run: all columns and events


@dataclass(frozen=True, slots=True)
class Event:
    """What every event has: the case (one drawn structure or setting) in which it was seen."""

    case: int = 0
