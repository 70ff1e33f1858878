"""The judge of rules that cut the rate when a metric stands still."""

import pytest


@pytest.fixture
def plateau(judged, ticks):
    """Judge a rule that cuts the rate after so many metrics, and return the ranks."""

    def judge(phase: str, cut: int | None, patience: int = 5, **promises) -> list[str]:
        rates = [0.5 if cut is not None and step >= cut else 1.0 for step in range(16)]
        events = ticks(rates, phase, metric=1.0)
        found = judged("plateau_waits_for_patience", events, patience=patience, **promises)
        return [finding.rank.value for finding in found]

    return judge


@pytest.mark.parametrize(
    ("phase", "cut", "expected"),
    [
        ("flat", 6, []),
        ("flat", 7, []),
        ("flat", 5, ["broken"]),
        ("flat", None, ["broken"]),
        ("improving", None, []),
        ("improving", 9, ["broken"]),
        ("nan, then flat", None, ["broken"]),
        ("nan, then improving", 9, ["broken"]),
        ("negative and flat", None, ["note"]),
        ("negative and improving", 9, ["note"]),
    ],
)
def test_cuts(phase: str, cut: int | None, expected: list[str], plateau) -> None:
    """A cut comes after the patience, or one later, and never while the metric improves."""
    assert plateau(phase, cut) == expected


@pytest.mark.parametrize(("metrics", "expected"), [((-1.0,), ["broken"]), ((1.0,), [])])
def test_metrics_below_zero_count_where_they_are_declared(
    metrics: tuple[float, ...], expected: list[str], plateau
) -> None:
    """Declared metrics say whether the rule will meet negative ones."""
    assert plateau("negative and flat", None, metrics=metrics) == expected


def test_a_nan_is_a_bad_metric_where_there_is_no_patience(plateau) -> None:
    """With a patience of one, a single nan may rightly cut the rate."""
    assert plateau("nan, then improving", 2, patience=1) == []
