"""Batch statistics of what was frozen after it had learned."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def fit(learns: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], steps: int = 40) -> None:
    """Train some parameters with an optimizer of their own."""
    optimizer = torch.optim.Adam(learns.parameters(), lr=1e-3)
    for _ in range(steps):
        F.cross_entropy(call(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def build() -> tuple[nn.Module, nn.Module]:
    """Return a backbone with batch statistics that has learned and is frozen, and a new head."""
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    fit(backbone, backbone, 20)
    return backbone.requires_grad_(requires_grad=False), nn.Linear(3, 3)


def within_the_model() -> None:
    """Train the head of one model."""
    backbone, head = build()
    fit(head, nn.Sequential(backbone, head))


def apart() -> None:
    """Train a head that is called by itself."""
    backbone, head = build()
    fit(head, lambda inputs: head(backbone(inputs)))


def asleep() -> None:
    """Train a head on a backbone in evaluation mode."""
    backbone, head = build()
    fit(head, nn.Sequential(backbone.eval(), head))


def thawed() -> None:
    """Train all once the head has warmed up."""
    backbone, head = build()
    model = nn.Sequential(backbone, head)
    fit(head, model)
    fit(model.requires_grad_(requires_grad=True), model)


def averaged() -> None:
    """Let the frozen part follow another one, by its data."""
    teacher, head = build()
    student, _ = build()

    def follow(inputs: torch.Tensor) -> torch.Tensor:
        """Move the teacher, and learn from it."""
        for kept, own in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.data.add_(0.1 * torch.ones_like(own.data))
        return head(teacher(inputs))

    fit(head, follow)


@pytest.mark.parametrize(
    ("train", "stays"),
    [(within_the_model, [1.0]), (apart, [1.0]), (asleep, []), (thawed, [0.0]), (averaged, [0.0])],
)
def test_statistics_of_what_was_frozen_later(train: Callable[[], None], stays: list[float]) -> None:
    """They are told with whether what is around them stays as it was, too."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "frozen statistics"]
    assert [probe.reference for probe in found] == stays
    assert all(probe.measured >= 16 for probe in found)


@pytest.mark.parametrize(
    ("momentum", "told"), [(0.99, [0.99]), (0.9, [0.9]), (0.1, []), (1.0, []), (None, [])]
)
def test_statistics_of_the_last_batch(momentum: float | None, told: list[float]) -> None:
    """A momentum near 1 is that of another library; exactly 1, or none, is chosen."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 3))
    with Recorder("x") as recorder:
        fit(model, model, 4)
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 6))
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "brief statistics"]
    assert [probe.measured for probe in found] == told


def follow(average: nn.Module, model: nn.Module, *, buffers: bool) -> None:
    """Move an average toward its model."""
    with torch.no_grad():
        for kept, own in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(own, 0.1)
        for kept, own in zip(average.buffers(), model.buffers(), strict=True):
            kept.copy_(own) if buffers else None


@pytest.mark.parametrize(
    ("kind", "told"), [("parameters", 1), ("buffers", 0), ("asleep", 0), ("no average", 0)]
)
def test_statistics_of_an_average_that_stay_what_they_were(kind: str, told: int) -> None:
    """Where it is made of a model that has learned, and the model's go on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with Recorder("x") as recorder:
        fit(model, model, 20)
        average = copy.deepcopy(model).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(6):
            for _ in range(10):
                model.train(kind != "asleep")
                rows, classes = torch.randn(16, 6), torch.randint(0, 3, (16,))
                optimizer.zero_grad()
                F.cross_entropy(model(rows), classes).backward()
                optimizer.step()
                if kind != "no average":
                    follow(average, model, buffers=kind == "buffers")
            with torch.no_grad():
                average(torch.randn(16, 6))
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "kept statistics"]
    assert len(probes) == told
    assert all(probe.measured >= 30 for probe in probes)
