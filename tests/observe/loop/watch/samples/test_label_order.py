"""Labels that come class by class, in passes of which not all is seen."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.label_order import _PlacedLabels


def looks(labels: torch.Tensor, epochs: int, *, shuffle: bool = False) -> list[Probe]:
    """Train with a loader of batches of eight, and return what was seen."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(len(labels), 4), labels), 8, shuffle=shuffle)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(epochs):
            for rows, kinds in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(rows), kinds).backward()
                optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "sorted"]


def test_long_runs_are_judged_by_what_is_seen_of_them() -> None:
    """Of 480 steps some are watched; two stretches of each pass rise."""
    (probe,) = looks(torch.arange(4).repeat_interleave(24).repeat(2), 20)
    assert (probe.measured, probe.reference) == (20.0, 12.0)
    assert probe.label == "96 labels in 12 steps"


def test_what_is_shuffled_or_never_comes_again_is_left_alone() -> None:
    """Classes in turns, too, and a stretch of a few batches."""
    sorts = torch.arange(4).repeat_interleave(48)
    assert looks(sorts, 20, shuffle=True) == []
    assert looks(torch.arange(4).repeat(48), 20) == []
    assert looks(torch.arange(4).repeat_interleave(4).repeat(12), 20) == []


def placed(rows: list[list[float]], again: int = 1) -> _PlacedLabels:
    """Return the labels of some passes."""
    own = _PlacedLabels()
    for turn in range(again + 1):
        for place, labels in enumerate(rows):
            own.add(labels, turn, place, place)
    return own


RISING = [[float(place // 3)] * 8 for place in range(12)]


def test_a_stretch_is_known_by_its_rows_and_batches() -> None:
    """From one pass to the next."""
    assert placed(RISING).find_run() == (96, 12)
    assert placed(RISING * 2).find_run() == (96, 12)


@pytest.mark.parametrize(
    "rows",
    [
        RISING[::-1],
        [[1.0, 0.0] * 4, *RISING],
        [[2.0] * 8] * 12,
        [[float(place // 3)] for place in range(12)],
        [*RISING, *[[float(place // 3)] * 8 for place in range(9)]],
        RISING[::4],
        [labels * 2 for labels in RISING[::4]],
    ],
    ids=["falling", "mixed", "one class", "few rows", "other stretches", "short", "few batches"],
)
def test_other_orders_are_none(rows: list[list[float]]) -> None:
    """Of stretches that fall, are mixed, are of one class, short, or not alike."""
    assert placed(rows, again=3).find_run() is None


def test_places_that_are_not_seen_are_let_pass() -> None:
    """As long as most are, and none came with other labels."""
    own = placed([])
    for turn in range(3):
        for place, labels in list(enumerate(RISING))[turn % 2 :: 2]:
            own.add(labels, turn, place, place)
    for place, labels in list(enumerate(RISING))[1::2]:
        own.add(labels, 9, place, place)
    assert own.find_run() == (96, 12)
    own.add([7.0] * 8, 4, 5, 5)
    assert own.find_run() is None
    few = placed([])
    for turn in range(4):
        for place, labels in list(enumerate(RISING))[::3]:
            few.add(labels, turn, place, place)
    assert few.find_run() is None


def test_one_pass_says_nothing() -> None:
    """Nor do few batches that came again."""
    assert placed(RISING, again=0).find_run() is None
    own = placed(RISING, again=0)
    for place in range(7):
        own.add(RISING[place], 1, place, place)
    assert own.find_run() is None


def test_a_pass_without_steps_is_an_evaluation() -> None:
    """Its losses may have a graph, and its classes come as they are stored."""
    own = _PlacedLabels()
    for turn in range(3):
        for place, labels in enumerate(RISING):
            own.add(labels, turn, place, 7 * turn)
    assert own.same == 24
    assert own.find_run() is None
