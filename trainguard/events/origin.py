"""The event that tells where in the user's code something was made."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(Event):
    """
    Which line made a module, an optimizer or a loader of a run.

    Or has drawn or set a weight, where that was done by a line of its own.

    name: as other events have it, "Net.norm", "AdamW#2"; "loader" is the one whose batches are
        learned from. source: the line, `train.py:21`, outside of the thing's own class.
    """

    name: str
    source: str
