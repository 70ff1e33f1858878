"""Terms of a loss that are multiplied by zeros."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ZEROS = torch.zeros(16)


def found(
    lose: Callable[[nn.Module, torch.Tensor, int], torch.Tensor], steps: int = 70
) -> list[tuple[float, float, str]]:
    """Train with a loss; return in how many looks a term was zero, and what it is."""
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    held = [cell.cell_contents for cell in lose.__closure__ or ()]  # as variables of a training
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            lose(net, torch.randn(16, 3), step).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    del held
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "zero term"]
    return [(probe.measured, probe.reference, probe.label) for probe in probes]


class Rollout:
    """The rewards that a training holds while it learns from them."""

    rewards = ZEROS

    def act(
        self, net: nn.Module, x: torch.Tensor, weigh: Callable, paid: bool = True
    ) -> torch.Tensor:
        """Return the loss of a policy, with an entropy."""
        choices = Categorical(logits=net(x))
        actions = choices.sample()
        self.rewards = (actions == 2).float() * paid + 1
        chosen = choices.log_prob(actions)
        return -(chosen * weigh(self.rewards)).mean() - 0.1 * choices.entropy().mean()


def whiten(rewards: torch.Tensor) -> torch.Tensor:
    """Return what is left of each number where each is normalised by itself."""
    return nn.functional.layer_norm(rewards[:, None], (1,))[:, 0]


def test_a_policy_weighed_by_zeros() -> None:
    """Known as such where rewards differ; else there is nothing to choose between."""
    rollout = Rollout()
    assert found(lambda net, x, _: rollout.act(net, x, whiten)) == [(5.0, 5.0, "policy")]
    assert found(lambda net, x, _: rollout.act(net, x, whiten, False)) == [(5.0, 5.0, "")]
    assert found(lambda net, x, _: rollout.act(net, x, lambda rewards: rewards - 0.1)) == []


def test_a_term_of_zeros_beside_a_policy() -> None:
    """What weighs the policy is not zero: the other term is none of it."""
    rollout = Rollout()

    def lose(net: nn.Module, x: torch.Tensor, _: int) -> torch.Tensor:
        """Return the loss of a policy, and a mask that is shut."""
        policy = rollout.act(net, x, lambda rewards: rewards - 0.1)
        return policy + (net(x).square().sum(1) * ZEROS).mean()

    assert found(lose) == [(5.0, 5.0, "")]


@pytest.mark.parametrize(
    ("lose", "expected"),
    [
        (lambda net, x, _: net(x).std() + (net(x).square().sum(1) * ZEROS).mean(), [(5, 5, "")]),
        (lambda net, x, n: net(x).std() + (net(x)[:, 0] * ZEROS.add(n > 9)).mean(), [(2, 5, "")]),
        (lambda net, x, _: net(x).std() + 0.0 * net(x).square().mean(), []),
        (lambda net, x, _: (net(x)[:, 0] * torch.arange(16)).mean(), []),
    ],
    ids=["zeros", "a warm-up", "switched off", "weights"],
)
def test_other_terms(lose: Callable, expected: list) -> None:
    """Zeros from the start, for a while, one for the whole term, and other weights."""
    assert found(lose) == expected


def test_a_mask_inside_of_a_model_is_no_term() -> None:
    """What is done to features is judged elsewhere."""
    head = nn.Linear(4, 1)
    assert found(lambda net, x, _: head(net(x) * torch.zeros(16, 4)).square().mean()) == []
