"""Evaluations that are shown other inputs each time."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of numbers, with noise in the first ones, and their labels."""

    def __init__(self, noisy: int, *, renamed: bool = False) -> None:
        self.rows, self.labels = torch.randn(32, 6), torch.arange(32) % 3
        self.noisy, self.renamed = noisy, renamed

    def __len__(self) -> int:
        """Return how many there are."""
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a row and its label."""
        label = torch.randint(3, ()) if self.renamed else self.labels[index]
        return self.rows[index] + torch.randn(6) * (index < self.noisy), label


def probes(data: Numbers, evaluations: int, *, shuffle: bool = False) -> list[Probe]:
    """Evaluate after each of a few steps, and return what is told of it."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(evaluations):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for rows, _labels in DataLoader(data, batch_size=16, shuffle=shuffle):
                    model(rows)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "augmented"]


def test_noise_on_all_rows_is_told() -> None:
    """It is told with the data set and the line of its loader."""
    (probe,) = probes(Numbers(32), 3)
    assert (probe.measured, probe.reference, probe.label) == (64.0, 3.0, "Numbers")
    assert "test_augmented_evaluations.py:" in probe.source


@pytest.mark.parametrize(
    ("data", "evaluations", "shuffle"),
    [
        (Numbers(0), 3, False),
        (Numbers(31), 3, False),
        (Numbers(32), 2, False),
        (Numbers(32), 3, True),
        (Numbers(32, renamed=True), 3, False),
    ],
    ids=["same", "one row stays", "two evaluations", "shuffled", "other targets"],
)
def test_other_evaluations_are_not(data: Numbers, evaluations: int, shuffle: bool) -> None:
    """What stays, what may be other samples, and what has other targets is left alone."""
    assert probes(data, evaluations, shuffle=shuffle) == []


def by_hand(
    noise: float,
    *,
    turns: bool = False,
    measured: bool = True,
    learns: bool = False,
    classes: int = 3,
) -> list[Probe]:
    """
    Evaluate rows without a loader, and return what is told of it.

    learns: whether the loss that follows is that of a training, as beside a teacher.
    """
    torch.manual_seed(0)
    model, rows, labels = nn.Linear(6, 3), torch.randn(32, 6), torch.arange(32) % classes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            order = torch.randperm(32) if turns else torch.arange(32)
            with torch.no_grad():
                for part in order.split(16):
                    scores = model(rows[part] + noise * torch.randn(16, 6))
                    with torch.set_grad_enabled(learns):
                        if measured:
                            nn.functional.cross_entropy(scores, labels[part])
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "augmented"]


def test_rows_that_no_loader_serves() -> None:
    """They are known by the targets that a loss function is given for them."""
    (probe,) = by_hand(0.5)
    assert (probe.measured, probe.reference, probe.label) == (96.0, 4.0, "the script")
    assert by_hand(0.0) == by_hand(0.5, turns=True) == by_hand(0.5, measured=False) == []
    assert by_hand(0.5, learns=True) == by_hand(0.5, classes=1) == []
