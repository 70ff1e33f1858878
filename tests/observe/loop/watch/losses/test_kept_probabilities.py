"""Ratios of probabilities, against those of the policy that acted."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def looks(kept: bool, turns: int = 2, passes: int = 3, draws: str = "first") -> list[float]:
    """Learn from each draw in some passes, and return the looks at ratios that were one."""
    policy = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(turns):
            states = torch.randn(16, 3)
            with torch.no_grad():
                acted = Categorical(logits=policy(states))
                actions = acted.sample()
                known = acted.log_prob(actions)
            for _ in range(passes):
                choice = Categorical(logits=policy(states))
                if draws == "each":
                    choice.sample()
                new = choice.log_prob(actions)
                ratio = (new - (known if kept else new.detach())).exp()
                optimizer.zero_grad()
                (-ratio * torch.randn(16)).mean().backward()
                optimizer.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ratio"]
    return [number for probe in found for number in (probe.measured, probe.reference)]


def test_all_ratios_after_the_first_step_are_one() -> None:
    """The first one of each draw is, whatever is kept."""
    assert looks(kept=False) == [4.0, 4.0]
    assert looks(kept=True) == []


@pytest.mark.parametrize("how", [{"passes": 1}, {"draws": "each"}], ids=["one pass", "drawn anew"])
def test_steps_that_show_nothing(how: dict[str, object]) -> None:
    """A step for each draw has a ratio of one."""
    assert looks(kept=False, **how) == []


def test_steps_of_another_optimizer_do_not_move_the_policy() -> None:
    """Its first ratio is one after a critic's step as well."""
    policy, critic = nn.Linear(3, 4), nn.Linear(3, 1)
    actor = torch.optim.SGD(policy.parameters(), lr=0.1)
    judge = torch.optim.SGD(critic.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(4):
            states = torch.randn(16, 3)
            choice = Categorical(logits=policy(states))
            actions = choice.sample()
            judge.zero_grad()
            critic(states).square().mean().backward()
            judge.step()
            new = choice.log_prob(actions)
            actor.zero_grad()
            ((new - new.detach()).exp() * torch.randn(16)).mean().backward()
            actor.step()
    assert not any(isinstance(e, Probe) and e.probe == "ratio" for e in recorder.trace)
