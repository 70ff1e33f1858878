"""Weights of log-probabilities that learn from being weights."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def looks(detached: bool) -> list[tuple[float, float]]:
    """Make three steps of an actor and a critic, whose errors are summed from the last one on."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            states, rewards = torch.randn(6, 8, 4), torch.rand(6, 8)
            policy = Categorical(logits=actor(states))
            taken = policy.sample()
            values = critic(states)[..., 0]
            errors = _sum_errors(rewards, values.detach() if detached else values)
            wanted = (errors + values).detach()
            loss = -(policy.log_prob(taken) * errors).mean() + (wanted - values).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "weight"]
    return [(probe.measured, probe.reference) for probe in found]


def _sum_errors(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the advantages of Schulman et al., with nothing after the last step."""
    made, running, after = [], torch.zeros(8), torch.zeros(8)
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        running = reward + 0.9 * after - value + 0.8 * running
        after = value
        made.insert(0, running)
    return torch.stack(made)


@pytest.mark.parametrize(("detached", "expected"), [(False, [(3, 3)]), (True, [])])
def test_values_that_are_read_backward(detached: bool, expected) -> None:
    """A table of values is turned around, and read step by step."""
    assert looks(detached) == expected
