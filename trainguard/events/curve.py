"""The event of a curve that is held against its snapshot."""

from dataclasses import dataclass

from trainguard.events.base import Event


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
