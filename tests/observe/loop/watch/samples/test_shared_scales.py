"""Series that were scaled as a whole before one end of them was held out."""

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder

MOMENTS, CUT, LENGTH = 800, 600, 12


def growing(width: int, seed: int = 0) -> np.ndarray:
    """Return a series (MOMENTS, width) that grows."""
    noise = np.random.default_rng(seed).standard_normal((MOMENTS, width))
    return noise + np.linspace(0, 3, MOMENTS)[:, None]


def standardised(series: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return a series in the units of a part of it."""
    return (series - by.mean(0)) / by.std(0)


def ranged(series: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return a series in the range of a part of it."""
    return (series - by.min(0)) / (by.max(0) - by.min(0))


def windows(series, begins) -> torch.Tensor:
    """Return windows of a series, by where they begin."""
    return torch.stack([torch.as_tensor(series[i : i + LENGTH]).float() for i in begins])


def train_on(cut, begins: list[int], later: list[int]) -> list[tuple[str, float]]:
    """Return by what the series of a training is scaled, and where the part for training begins."""
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(1))
    net(cut([0]))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    with Recorder("x") as recorder:
        for rows in torch.tensor(begins)[torch.randperm(len(begins))].split(32):
            optimizer.zero_grad()
            net(cut(rows.tolist())).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for rows in torch.tensor(later).split(32):
                net(cut(rows.tolist()))
    assert "faults" not in recorder.trace.conditions
    events = [e for e in recorder.trace if getattr(e, "probe", "") == "shared scale"]
    return [(event.label.split()[-2], event.measured) for event in events]


FIRST, LATER = [*range(CUT - LENGTH)], [*range(CUT, MOMENTS - LENGTH)]


@pytest.mark.parametrize(("width", "dtype"), [(1, np.float64), (1, np.float32), (3, np.float64)])
def test_a_series_is_scaled_as_a_whole(width: int, dtype) -> None:
    """Windows of a series: by the mean and deviation of all of it, or by those of the training."""
    series = growing(width)
    for scale, kind in ((standardised, "deviation"), (ranged, "range")):
        whole = scale(series, series).astype(dtype)
        ((by, own),) = train_on(lambda rows, s=whole: windows(s, rows), FIRST, LATER)
        part = whole[:CUT].mean(0) if kind == "deviation" else whole[:CUT].min(0)
        assert by == kind
        assert own == pytest.approx(float(part[0]), abs=0.01)
        early = scale(series, series[:CUT])
        assert train_on(lambda rows, s=early: windows(s, rows), FIRST, LATER) == []


def test_rows_of_a_table() -> None:
    """A row is a moment; the later ones are held out, or drawn at random."""
    table = torch.from_numpy(standardised(growing(5), growing(5))).float()
    begins = torch.randperm(MOMENTS).tolist()
    assert train_on(lambda rows: table[rows], [*range(CUT)], [*range(CUT, MOMENTS)]) != []
    assert train_on(lambda rows: table[rows], begins[:CUT], begins[CUT:]) == []


def test_a_series_without_a_trend() -> None:
    """The training part has nearly the scale of all: there is nothing to know from it."""
    noise = np.random.default_rng(0).standard_normal((MOMENTS, 2))
    series = standardised(noise, noise)
    assert train_on(lambda rows: windows(series, rows), FIRST, LATER) == []


def test_an_evaluation_of_what_was_learned_from() -> None:
    """Nothing is held out of the series."""
    series = standardised(growing(2), growing(2))
    assert train_on(lambda rows: windows(series, rows), FIRST, FIRST[:200]) == []


def test_a_share_of_time() -> None:
    """A column that goes from 0 to 1, as days that are marked do, is no scale."""
    series = standardised(growing(2), growing(2)[:CUT])
    marks = (np.arange(MOMENTS) > CUT + 20).astype(float)[:, None]
    series = np.concatenate([series, marks], 1)
    assert train_on(lambda rows: windows(series, rows), FIRST, LATER) == []


def test_windows_from_elsewhere() -> None:
    """A series that hardly any window is from says nothing."""
    series = standardised(growing(2), growing(2))
    other = growing(2, seed=1)
    assert train_on(lambda rows: windows(other, rows), FIRST, LATER) == []
    assert len(series) == MOMENTS


def test_numbers_that_are_not_finite() -> None:
    """A series may have any number, too large ones for 32 bits among them; nothing is warned of."""
    series = standardised(growing(2), growing(2))
    other = series.copy()
    other[5], other[6, 0], other[7, 1] = np.inf, np.nan, 1e300
    assert train_on(lambda rows: windows(series, rows), FIRST, LATER) != []
    assert len(other) == MOMENTS
