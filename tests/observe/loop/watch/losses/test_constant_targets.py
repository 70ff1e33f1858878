"""Outputs that every loss pulls to one target."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ONES, ZEROS = torch.ones(16, 1), torch.zeros(16, 1)
BCE = F.binary_cross_entropy_with_logits
CLASS = torch.ones(16, dtype=torch.long)


def probes(loss, width: int = 1, steps: int = 40, idle: int = 0, **more) -> list[Probe]:
    """Record a critic that is trained on what is real and made, beside idle optimizers."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, width, **more))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
        others = [torch.optim.SGD([nn.Parameter(torch.zeros(1))]) for _ in range(idle)]
        for step in range(steps):
            loss(critic, torch.randn(16, 4), 1 - torch.rand(16, 4), step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(others) == idle
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "one target"]


def of_lines(critic, real, made, step):
    """Return the losses of two lines."""
    first = BCE(critic(real), ONES)
    return first + BCE(critic(made), ONES)


def in_a_loop(critic, real, made, step):
    """Return the losses of one line."""
    return sum(F.binary_cross_entropy(critic(each).sigmoid(), ONES) for each in (real, made))


def of_classes(critic, real, made, step):
    """Return the losses of two classes."""
    return sum(F.cross_entropy(critic(each), CLASS) for each in (real, made)) / 2


@pytest.mark.parametrize(
    ("loss", "width"),
    [(of_lines, 1), (in_a_loop, 1), (of_classes, 2)],
    ids=["lines", "loop", "two"],
)
def test_one_target_for_all_is_told(loss, width: int) -> None:
    """With how many losses there are, and what they pull to."""
    (probe,) = probes(loss, width)
    assert (probe.reference, probe.label) == (2.0, "1")
    assert probe.step == 32
    assert probe.measured == 11


@pytest.mark.parametrize("idle", [1, 4])
def test_an_optimizer_that_never_steps_changes_nothing(idle: int) -> None:
    """No more steps are looked at where one waits for its first step for ever."""
    (probe,) = probes(of_lines, idle=idle)
    assert (probe.step, probe.measured) == (32, 11.0)


SOUND = {
    "both": lambda d, r, m, _: BCE(d(r), ONES) + BCE(d(m), ZEROS),
    "at times": lambda d, r, m, i: BCE(d(r), ONES) + BCE(d(m), ZEROS if i % 8 == 7 else ONES),
    "one loss": lambda d, r, _m, _i: BCE(d(r), ONES),
    "by hand": lambda d, r, m, _: BCE(d(r), ONES) + BCE(d(r), ONES) + F.softplus(d(m)).mean(),
    "penalty": lambda d, r, m, _: (
        BCE(d(r), ONES) + BCE(d(m), ONES) + sum(p.square().sum() for p in d.parameters())
    ),
    "samples": lambda d, r, m, _: BCE(d(r), (r[:, :1] > 0).float()) + BCE(d(m), ONES),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_pulled_elsewhere_too_is_not(name: str) -> None:
    """A second target, a single loss and a part that is written by hand explain the first."""
    assert probes(SOUND[name]) == []


def test_outputs_without_a_bias_are_told_too() -> None:
    """The weight of their layer is known instead."""
    assert len(probes(of_lines, bias=False)) == 1


def test_scores_of_pairs_are_left_alone() -> None:
    """They are made by no layer of their own."""

    def of_pairs(critic, real, made, step):
        """Return the losses of products."""
        codes = critic(real)
        return 2 * BCE(codes @ codes.T, torch.ones(16, 16)) + BCE(
            codes @ codes.T, torch.ones(16, 16)
        )

    assert probes(of_pairs, width=4) == []
