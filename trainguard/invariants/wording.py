"""The few words and numbers that all judgements write alike."""

from collections.abc import Iterator

from trainguard.events.trace import Sample, Trace


def number(value: float) -> str:
    """Write a number with four significant digits."""
    return f"{value:.4g}"


def coordinate(sample: Sample) -> str:
    """Write where in its inputs a sample was measured: `log_scales[0, 3]`."""
    return f"{sample.input}[{', '.join(map(str, sample.index))}]" if sample.index else sample.input


def share(sample: Sample) -> str:
    """Write how many of the points were like this one."""
    return f"({sample.bad} of {sample.points} points)"


def of(trace: Trace[Sample], quantity: str) -> Iterator[Sample]:
    """Return the samples of one quantity."""
    return (sample for sample in trace if sample.quantity == quantity)
