"""Actions that a policy learns from: whether they were drawn."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def learn(make, choose, scale: float = 1.0, looked: bool = True) -> list[Probe]:
    """Learn from what is chosen of the policy that is made of an output (8, 4)."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reward = torch.randn(8)
    with Recorder("x") as recorder:
        for _ in range(12):
            policy = make(scale * model(torch.randn(8, 3)))
            loss = -(policy.log_prob(choose(policy)) * reward).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert ("likeliest" in recorder.trace.conditions["looked"]) == looked
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "likeliest"]


def by_logits(output: torch.Tensor) -> Categorical:
    """Return a policy of four actions."""
    return Categorical(logits=output)


def by_probabilities(output: torch.Tensor) -> Categorical:
    """Return the same, by its probabilities."""
    return Categorical(output.softmax(-1))


def moving(output: torch.Tensor) -> Independent:
    """Return a policy of four numbers."""
    return Independent(Normal(output, 0.5), 1)


def take_likeliest(policy) -> torch.Tensor:
    """Return the likeliest actions."""
    return (policy.mean if isinstance(policy, Independent) else policy.probs.argmax(-1)).detach()


@pytest.mark.parametrize("make", [by_logits, by_probabilities, moving])
def test_the_likeliest_of_all(make) -> None:
    """None of them was drawn."""
    (probe,) = learn(make, take_likeliest)
    assert probe.measured == (384 if make is moving else 96)
    assert 0.05 < probe.reference < 0.8


@pytest.mark.parametrize("make", [by_logits, by_probabilities, moving])
def test_actions_that_are_drawn_are_fine(make) -> None:
    """The likeliest are among them."""
    assert learn(make, lambda policy: policy.sample()) == []


def test_a_policy_that_is_sure_is_fine() -> None:
    """It would have drawn them: there is nothing to judge."""
    assert learn(by_logits, take_likeliest, scale=1000.0, looked=False) == []


def test_a_likelihood_without_a_reward_is_fine() -> None:
    """Labels may be the likeliest."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            classes = Categorical(logits=model(torch.randn(8, 3)))
            optimizer.zero_grad()
            (-classes.log_prob(take_likeliest(classes)).mean()).backward()
            optimizer.step()
    assert "likeliest" not in recorder.trace.conditions["looked"]
