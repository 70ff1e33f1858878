"""What a run keeps, and whether it grows."""

import pytest

from trainguard.events.loop import RunGrowth

LOOKS = (0, 1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("kind", "counts", "among", "expected"),
    [
        ("graphs", (0, 0, 0, 2, 6, 14, 30, 62), (0, 0, 0, 2, 6, 14, 30, 62), ["broken"]),
        ("graphs", (0, 0, 0, 2, 6, 14, 30, 10), (0, 0, 0, 2, 6, 14, 30, 62), ["note"]),
        ("graphs", (0, 0, 0, 2, 6, 8, 8, 8), (0, 0, 0, 2, 6, 14, 30, 62), []),
        ("hooks", (0, 0, 0, 0, 1, 2, 4, 8), (0,) * 8, ["broken"]),
        ("hooks", (0, 0, 0, 0, 1, 2, 2, 2), (0,) * 8, []),
        ("hooks", (0, 1, 2, 3, 4, 0, 1, 2), (0,) * 8, []),
        ("handlers", (1, 2, 3, 4, 5, 6, 7, 8), (0,) * 8, ["broken"]),
        ("optimizers", tuple(range(2, 12)), (1,) * 10, ["broken"]),
        ("optimizers", tuple(range(2, 8)), (30,) * 6, ["note"]),
        ("optimizers", (2, 3), (30,) * 2, []),
    ],
)
def test_growth(kind: str, counts, among, expected: list, ranks, steps) -> None:
    """What grows without end is broken; what is let go, and a few stages, are not."""
    growth = RunGrowth(kind=kind, steps=LOOKS[: len(counts)], counts=counts, among=among)
    assert ranks("nothing_grows", [*steps(70), growth]) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 1, 2, 3, 4, 6, 8, 10), ["broken"]),
        ((0, 1, 2, 3, 4, 5, 6, 7), []),
        ((0, 2, 4, 6, 8, 9, 9, 9), []),
        ((0, 2, 4, 8, 2, 4, 8, 10), []),
        ((0, 0, 0, 0, 0, 0, 5, 10), []),
    ],
    ids=["grows", "few", "a bound", "let go", "two looks"],
)
def test_graphs_of_evaluations(counts, expected: list, ranks, steps) -> None:
    """Few graphs are kept for ever, too, where each look finds more of them."""
    graphs = RunGrowth(kind="graphs", steps=LOOKS, counts=counts, among=(0, *range(10, 80, 10)))
    stale = RunGrowth(kind="stale", steps=LOOKS, counts=counts)
    assert ranks("nothing_grows", [*steps(70), graphs, stale]) == expected
