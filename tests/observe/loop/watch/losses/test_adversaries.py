"""Which way the scores of what is made are pulled: by its judge, and by who makes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def play(loss_of_judge, loss_of_maker, real=None, holds_both: bool = False) -> list[Probe]:
    """Record a game of two modules, and return where they pull one way."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    judge = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    makers = [*maker.parameters(), *(judge.parameters() if holds_both else [])]
    makes = torch.optim.SGD(makers, lr=0.05)
    judges = torch.optim.SGD(judge.parameters(), lr=0.05)
    real = real or (lambda made: torch.randn(32, 2) + 3)
    with Recorder("x") as recorder:
        for _ in range(20):
            made = maker(torch.randn(32, 3))
            judges.zero_grad()
            loss_of_judge(judge(real(made)), judge(made.detach())).backward()
            judges.step()
            makes.zero_grad()
            loss_of_maker(judge(made)).backward()
            makes.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "same pull"]


def tell_apart(real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return the loss of a discriminator."""
    scores, labels = torch.cat([real, made]), torch.cat([real * 0 + 1, made * 0]).detach()
    return F.binary_cross_entropy_with_logits(scores, labels)


def bound(real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return the hinge loss of a discriminator."""
    return F.relu(1 - real).mean() + F.relu(1 + made).mean()


def label(scores: torch.Tensor, value: float) -> torch.Tensor:
    """Return the loss of scores that are to be called real, or made."""
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, value))


@pytest.mark.parametrize(
    ("judge", "maker"),
    [
        (tell_apart, lambda scores: label(scores, 0.0)),
        (bound, lambda scores: scores.mean()),
        (lambda real, made: made.mean() - real.mean(), lambda scores: scores.mean()),
    ],
    ids=["cross-entropy", "hinge", "distance"],
)
def test_one_way_for_both_is_found(judge, maker) -> None:
    """Whatever the loss is, by its gradient."""
    (probe,) = play(judge, maker)
    assert (probe.measured, probe.label) == (20, "Sequential#2")
    assert probe.source.endswith(f"{__file__.rpartition('/')[2]}:28")


@pytest.mark.parametrize(
    ("judge", "maker"),
    [
        (tell_apart, lambda scores: label(scores, 1.0)),
        (bound, lambda scores: -scores.mean()),
        # Each learns the same, in turns: nothing is told apart.
        (lambda real, made: label(real, 1.0) + label(made, 1.0), lambda s: label(s, 1.0)),
        # To confuse is to pull to the middle, either way.
        (tell_apart, lambda scores: (scores - scores.mean()).square().mean()),
    ],
    ids=["cross-entropy", "hinge", "in turns", "to the middle"],
)
def test_other_ways_are_fine(judge, maker) -> None:
    """What pulls the other way, and what is no game."""
    assert play(judge, maker) == []


def test_who_holds_the_judge_too_is_no_adversary() -> None:
    """A step of both is one of the judge's own."""
    assert play(tell_apart, lambda scores: label(scores, 0.0), holds_both=True) == []


def test_scores_that_are_asked_for_a_penalty_are_pulled_by_nobody() -> None:
    """The gradient that a penalty is made of points up for whatever it is asked of."""
    found = play(tell_apart, lambda scores: label(scores, 1.0), lambda made: made.detach() + 3)
    assert found == []
