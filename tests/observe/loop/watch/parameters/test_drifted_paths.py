"""Heads that are evaluated behind statistics which another head's training has moved."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Heads(nn.Module):
    """Two heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(9, 3) for name in ("old", "new")})

    def forward(self, inputs: torch.Tensor, *names: str) -> torch.Tensor:
        """Return the sum of some heads."""
        features = self.trunk(inputs)
        return sum(self.heads[name](features) for name in names)


def fit(
    model: Heads,
    learns: nn.Module,
    names: tuple[str, ...],
    shift: float,
    *,
    awake: bool,
    steps: int = 40,
) -> None:
    """Train a part of a model by some of its heads."""
    optimizer = torch.optim.Adam(learns.parameters(), lr=1e-3)
    for _ in range(steps):
        model.train()
        model.trunk.train(awake)
        inputs, classes = torch.randn(32, 6) + shift, torch.randint(0, 3, (32,))
        F.cross_entropy(model(inputs, *names), classes).backward()
        optimizer.step()
        optimizer.zero_grad()


def found(
    trained: tuple[str, ...] = ("new",),
    asked: str = "old",
    shift: float = 3.0,
    *,
    learns: str = "new",
    awake: bool = True,
    thawed: bool = False,
    steps: int = 40,
    nudged: bool = False,
) -> list[Probe]:
    """Return what is seen of an evaluation after a second stage; learns: a part of the heads."""
    torch.manual_seed(0)
    model = Heads()
    with Recorder("x") as recorder:
        fit(model, model, ("old",), 0.0, awake=True)
        model.trunk.requires_grad_(thawed)
        part = model.heads[learns] if learns else model.heads
        fit(model, part, trained, shift, awake=awake, steps=steps)
        model.eval()
        with torch.no_grad():
            if nudged:
                model.heads["old"].weight.mul_(0.9)
            model(torch.randn(16, 6) + shift, "new")
            model(torch.randn(16, 6), asked)
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "drifted"]


def test_an_old_head_behind_another_training() -> None:
    """How far the statistics have moved is told, in as many batches, with the head."""
    (probe,) = found()
    assert (probe.label, probe.reference >= 16, probe.measured > 0.4) == (
        *("Heads.heads.old", True, True),
    )


def test_the_same_data_moves_little() -> None:
    """What is learned from the same distribution stays below any limit."""
    (probe,) = found(shift=0.0)
    assert 0 < probe.measured < 0.15


@pytest.mark.parametrize(
    "case",
    [
        {"awake": False},
        {"asked": "new"},
        {"trained": ("old", "new")},
        {"learns": "", "trained": ("old", "new"), "asked": "old"},
        {"thawed": True},
        {"steps": 12},
        {"nudged": True},
    ],
    ids=["asleep", "the new head", "both are called", "both learn", "not frozen", "few", "moved"],
)
def test_nothing_is_told(case: dict[str, object]) -> None:
    """Of statistics that stay, of what learns, or is called as it does."""
    assert found(**case) == []


def test_a_pass_that_fails_leaves_no_trace() -> None:
    """What was called is known as before, once the next pass begins."""
    torch.manual_seed(0)
    model = Heads()
    with Recorder("x") as recorder:
        model.trunk.requires_grad_(requires_grad=False)
        fit(model, model.heads["new"], ("new",), 3.0, awake=True)
        called = set(recorder.called)
        model.eval()
        with torch.no_grad(), pytest.raises(KeyError):
            model(torch.randn(16, 6), "no such head")
        with torch.no_grad():
            model(torch.randn(16, 6), "old")
        assert called < recorder.called
