"""Scores that are cosines, and the least that their loss can be."""

from collections.abc import Callable
from math import exp, log, log1p

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def looks(score: Score, classes: int = 10, labels: int = 10) -> list[tuple[float, float, int, str]]:
    """Make four steps with the scores of samples and classes, and return what was seen."""
    torch.manual_seed(0)
    body, rows = nn.Linear(3, 6), nn.Parameter(torch.randn(classes, 6))
    optimizer = torch.optim.SGD([*body.parameters(), rows], lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            scores = score(body(torch.randn(8, 3)), rows)
            loss = F.cross_entropy(scores, torch.randint(labels, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "bounded scores"]
    seen = "bounded scores" in str(recorder.trace.conditions["looked"])
    assert seen is bool(found)
    return [(probe.measured, probe.reference, probe.step, probe.label) for probe in found]


@pytest.mark.parametrize(
    ("score", "factor"),
    [
        (lambda x, w: F.linear(F.normalize(x), F.normalize(w)), 1.0),
        (lambda x, w: F.normalize(x) @ F.normalize(w).T * 0.5, 0.5),
        (lambda x, w: 20 * (F.normalize(x) @ (w / w.norm(dim=1, keepdim=True)).T), 20.0),
    ],
)
def test_cosines_of_classes_are_told(score: Score, factor: float) -> None:
    """With the least loss: all others as far away from the class as they can be."""
    least = log1p(9 * exp(-2 * factor))
    assert looks(score) == [(pytest.approx(least), pytest.approx(log(10)), 10, f"{factor:g}")]


def pairs(factor: float, *, masks: bool = False) -> Score:
    """Return cosines of samples and of what else is made of them, times a factor."""

    def score(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return a row of scores for each sample."""
        cosines = F.normalize(x) @ F.normalize(x.flip(1) + rows[:8]).T * factor
        if not masks:
            return cosines
        cosines = cosines - torch.arange(8.0) / 8
        return cosines.masked_fill(torch.eye(8).bool().roll(1, 0), float("-inf"))

    return score


@pytest.mark.parametrize("masks", [False, True])
def test_cosines_of_outputs_are_told_where_they_are_cold(masks: bool) -> None:
    """Times a temperature, whatever is masked or added; divided by one they are left alone."""
    least = log1p(7 * exp(-0.2))
    told = [(pytest.approx(least), pytest.approx(log(8)), 8, "0.1 of outputs")]
    assert looks(pairs(0.1, masks=masks), labels=8) == told
    assert looks(pairs(10.0, masks=masks), labels=8) == []
    assert looks(pairs(0.8, masks=masks), labels=8) == []


def test_cosines_of_classes_with_a_margin_are_left_alone() -> None:
    """What is added to them may be a bias, or what one class is to be ahead by."""
    score = lambda x, w: F.linear(F.normalize(x), F.normalize(w)) - torch.ones(10)  # noqa: E731
    assert looks(score) == []


@pytest.mark.parametrize(
    "score",
    [
        F.linear,
        lambda x, w: F.linear(F.normalize(x), w),
        lambda x, w: F.linear(x, F.normalize(w)),
        lambda x, w: F.linear(F.normalize(x), F.normalize(w)) * w.norm(),
        lambda x, w: F.linear(F.normalize(x), F.normalize(w + x.mean())),
    ],
    ids=["products", "classes as they are", "samples as they are", "learned", "made"],
)
def test_others_are_left_alone(score: Score) -> None:
    """Scores without an end, a scale that is learned, and classes that are no parameters."""
    assert looks(score) == []
