"""Which columns of windows are made from what comes after them."""

import numpy as np
import pytest
import torch

from trainguard.observe.loop.watch.samples.centred_columns import Centred, CentredColumns

HOURS, LENGTH = 600, 24
SERIES = np.random.default_rng(0).normal(size=HOURS).cumsum() * 0.3
SERIES += np.random.default_rng(1).normal(size=HOURS)


def centred(width: int) -> np.ndarray:
    """Return the mean of so many moments around each."""
    return np.convolve(SERIES, np.ones(width) / width, mode="same")


def seen(column: np.ndarray, target: np.ndarray = SERIES, **changes: float) -> Centred | None:
    """Take in windows of the series and a column, in any order; return what is found."""
    scaled = column * changes.get("scale", 1.0) + changes.get("shift", 0.0)
    table = torch.tensor(np.stack([SERIES, scaled], axis=1)).float()
    windows = table.unfold(0, LENGTH, 1)[:-1].transpose(1, 2)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    columns = CentredColumns()
    for rows in order.split(50):
        columns.add(windows[rows], torch.tensor(target).float()[LENGTH:][rows])
    return columns.find()


@pytest.mark.parametrize("width", [3, 5, 15])
def test_a_centred_mean(width: int) -> None:
    """Of any width, and however it was scaled."""
    expected = Centred(1, 0, width // 2, width // 2)
    assert seen(centred(width)) == expected
    assert seen(centred(width), scale=-7.0, shift=3.0) == expected


def test_a_target_that_is_further_away() -> None:
    """As long as the mean reaches it, or moments that tell of it."""
    assert seen(centred(9), target=np.roll(SERIES, -2)) == Centred(1, 0, 4, 4)


def test_a_centred_difference() -> None:
    """As np.gradient makes it."""
    assert seen(np.gradient(SERIES)) == Centred(1, 0, 1, 1)


def test_what_comes_next_itself() -> None:
    """A column that is one moment ahead."""
    assert seen(np.roll(SERIES, -1)) == Centred(1, 0, 0, 1)


@pytest.mark.parametrize(
    "column",
    [
        np.convolve(SERIES, np.ones(5) / 5)[:HOURS],
        np.diff(SERIES, prepend=0.0),
        np.roll(SERIES, 3),
        np.sin(np.arange(HOURS) / 4),
        np.random.default_rng(2).normal(size=HOURS),
        np.maximum(SERIES, np.roll(SERIES, -1)),
        np.zeros(HOURS),
    ],
    ids=["trailing", "difference", "late", "periodic", "noise", "maximum", "constant"],
)
def test_columns_of_the_past(column: np.ndarray) -> None:
    """And what is no sum."""
    assert seen(column) is None


def test_another_target() -> None:
    """Where the target is no value of the series, windows may be of any time."""
    assert seen(centred(5), target=np.random.default_rng(3).normal(size=HOURS)) is None
    assert seen(centred(5), target=np.roll(SERIES, -30)) is None


def test_batches_that_are_no_windows() -> None:
    """Pictures, classes, short and single ones."""
    columns = CentredColumns()
    columns.add(torch.randn(8, 24), torch.randn(8))
    columns.add(torch.randn(8, 24, 2), torch.zeros(8, dtype=torch.long))
    columns.add(torch.randn(8, 4, 2), torch.randn(8))
    columns.add(torch.randn(8, 24, 99), torch.randn(8))
    assert columns.rows == 0
    assert columns.find() is None
    columns.add(torch.randn(8, 24, 2), torch.randn(8, 3))
    columns.add(torch.randn(8, 30, 2), torch.randn(8))
    assert columns.rows == 16
    assert columns.find() is None


@pytest.mark.parametrize("after", [True, False])
def test_what_had_nothing_to_judge_is_known(after: bool) -> None:
    """Targets that are no later value of any column leave nothing to look for."""
    table = torch.tensor(np.stack([SERIES, np.roll(SERIES, 3)], axis=1)).float()
    windows = table.unfold(0, LENGTH, 1)[:-1].transpose(1, 2)
    targets = table[LENGTH:, 0] if after else torch.randn(len(windows))
    columns = CentredColumns()
    columns.add(windows, targets)
    assert columns.find() is None
    assert columns.is_series == after
