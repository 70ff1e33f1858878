"""The few words and numbers that all judgements write alike."""

from collections.abc import Iterator
from typing import TypeVar

from trainguard.core.measure import Place, number
from trainguard.events.trace import Pass, Sample, Trace, Usage

__all__ = ["coordinate", "number", "of", "share"]
Q = TypeVar("Q", Sample, Pass, Usage)


def coordinate(sample: Sample) -> Place:
    """Write where in its inputs a sample was measured: `log_scales[0, 3]`."""
    index = f"[{', '.join(map(str, sample.index))}]" if sample.index else ""
    return Place(f"{sample.input}{index}", coordinate=f"{sample.input}{index}")


def share(sample: Sample) -> str:
    """Write how many of the points were like this one."""
    return f"({sample.bad} of {sample.points} points)"


def of(trace: Trace[Q], quantity: str) -> Iterator[Q]:
    """Yield the events of one quantity."""
    return (seen for seen in trace if seen.quantity == quantity)
