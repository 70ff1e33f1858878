"""Log-probabilities of choices, and which way what has paid pushes them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def looks(make: Loss, name: str = "paid", **options: object) -> list[tuple[str, float, float]]:
    """Make five steps of a policy, weighed by what has a name, and return what was seen."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01, **options)
    with Recorder("x") as recorder:
        for _ in range(5):
            choice = Categorical(logits=policy(torch.randn(8, 4)))
            log_probs = choice.log_prob(choice.sample())
            if name == "costs":
                costs = torch.randn(8)
                loss = make(log_probs, costs)
            else:
                rewards = torch.randn(8)
                costs = returns = -rewards if name != "paid" else rewards
                assert returns.shape == costs.shape
                loss = make(log_probs, costs if name == "both" else rewards)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "term sign"]
    return [(probe.label, probe.measured, probe.reference) for probe in found]


def forgotten(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return a loss without its minus sign."""
    return (log_probs * (2 * paid)).mean()


def one_by_one(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return the same of a list."""
    pairs = zip(log_probs, paid.tolist(), strict=True)
    return torch.stack([own * weight for own, weight in pairs]).sum()


def clipped(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return the smaller of two ratios that are weighed, without its minus sign."""
    ratio = (log_probs - log_probs.detach() - 0.1).exp()
    return torch.min(ratio * paid, ratio.clamp(0.8, 1.2) * paid).mean()


@pytest.mark.parametrize("make", [forgotten, one_by_one, clipped])
def test_pay_that_is_added_is_told(make: Loss) -> None:
    """In whatever form it is weighed, in the four of these steps that are looked at."""
    assert looks(make) == [("policy", 4.0, 4.0)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda log_probs, paid: -forgotten(log_probs, paid), "paid"),
        (lambda log_probs, paid: -clipped(log_probs, paid), "paid"),
        (forgotten, "costs"),
        (forgotten, "both"),
        (forgotten, "opposite"),
    ],
    ids=["minus", "clipped", "costs", "both", "opposite"],
)
def test_other_losses_are_left_alone(make: Loss, name: str) -> None:
    """What has paid is taken off, nothing has its name, or both directions have."""
    assert looks(make, name) == []


def test_an_optimizer_that_climbs_is_left_alone() -> None:
    """It makes larger what others make smaller."""
    assert looks(forgotten, maximize=True) == []
