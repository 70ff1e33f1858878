"""The sequences of metrics that a plateau rule is fed."""

from collections.abc import Callable
from math import nan

from trainguard.subjects.schedule import Schedule

Metrics = Callable[[int], float]


def declared_metrics(schedule: Schedule) -> Metrics:
    """Return the declared metrics, the last one held; without any, metrics that improve."""
    given = schedule.metrics
    if given:
        return lambda step: given[min(step, len(given) - 1)]
    return improving(schedule.mode, 10)


def flat(_mode: str, _patience: int) -> Metrics:
    """Return a metric that never changes."""
    return lambda _step: 100.0


def improving(mode: str, patience: int) -> Metrics:
    """
    Return a metric that improves by a tenth, eight times within the patience.

    So few and large improvements keep clear of any threshold, relative or absolute, even where a
    patience of a thousand metrics makes the sequence long.
    """
    factor = 1.1 if mode == "max" else 0.9
    every = max(1, patience // 8)
    return lambda step: 100.0 * factor ** min(step // every, 1000)


def below_zero(metrics: Callable[[str, int], Metrics]) -> Callable[[str, int], Metrics]:
    """Return the same sequence mirrored at zero, so that it improves in the same mode."""

    def mirror(mode: str, patience: int) -> Metrics:
        """Return the mirror image of the sequence of the opposite mode."""
        positive = metrics("min" if mode == "max" else "max", patience)
        return lambda step: -positive(step)

    return mirror


def after_one_nan(metrics: Callable[[str, int], Metrics]) -> Callable[[str, int], Metrics]:
    """Return the same sequence with a nan as its first metric."""

    def spoilt(mode: str, patience: int) -> Metrics:
        """Return the spoilt sequence."""
        clean = metrics(mode, patience)
        return lambda step: nan if step == 0 else clean(step)

    return spoilt


# The names are the phases of the trace.
SEQUENCES: dict[str, Callable[[str, int], Metrics]] = {
    "flat": flat,
    "improving": improving,
    "negative and flat": below_zero(flat),
    "negative and improving": below_zero(improving),
    "nan, then flat": after_one_nan(flat),
    "nan, then improving": after_one_nan(improving),
}
