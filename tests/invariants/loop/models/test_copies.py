"""The judge of copies that are reduced with those of other samples."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.probe import Probe

TOGETHER = "copies_come_together"


def separated(measured: float, reference: float, made: str = "repeat") -> Probe:
    """Write at how many looks groups were of different samples."""
    label, source = f"50 8 {made}", "/home/me/train.py:9"
    return Probe(
        probe="separated copies",
        measured=measured,
        reference=reference,
        label=label,
        source=source,
    )


@pytest.mark.parametrize(
    ("made", "shape", "other"),
    [("repeat", "(8, 50)", "repeat_interleave"), ("repeat_interleave", "(50, 8)", "repeat")],
)
def test_copies_that_are_apart(made: str, shape: str, other: str, judged, steps) -> None:
    """The order that the rows have is said, and how to have the other one."""
    (finding,) = judged(TOGETHER, [*steps(9), separated(3, 3, made)])
    assert finding.at == f"8 copies of each of 50 samples, as `{made}` makes them"
    assert finding.measured == "3 of 3 steps reduce groups of different samples"
    assert f"are a table of {shape}: view them so" in finding.why
    assert finding.why.endswith(f"by {other}")
    assert (finding.allowed, finding.rank) == ("0 steps", Rank.BROKEN)


@pytest.mark.parametrize(("measured", "reference"), [(1, 1), (2, 3)])
def test_some_looks_are_not_enough(measured: float, reference: float, ranks, steps) -> None:
    """It is so in each, and in two of them."""
    assert ranks(TOGETHER, [*steps(9), separated(measured, reference)]) == []
