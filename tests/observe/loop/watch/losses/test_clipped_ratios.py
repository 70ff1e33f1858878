"""Ratios of probabilities that are clipped, and which of two gains a loss takes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Gain = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def looks(loss: Gain, negative: bool = True) -> list[tuple[float, float, str]]:
    """Make four steps of a policy after each time that it acts, and return what was seen."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        states = torch.randn(16, 4)
        with torch.no_grad():
            dist = Categorical(logits=policy(states))
            taken = dist.sample()
            old = dist.log_prob(taken)
        weights = torch.randn(16) if negative else torch.rand(16)
        for _ in range(4):
            dist = Categorical(logits=policy(states))
            ratio = (dist.log_prob(taken) - old).exp()
            value = loss(ratio, weights) - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "clipped ratio"]
    return [(probe.measured, probe.reference, probe.label) for probe in found]


def clip(ratio: torch.Tensor) -> torch.Tensor:
    """Return a ratio that is near one."""
    return ratio.clamp(0.8, 1.2)


WRONG: dict[str, tuple[Gain, str]] = {
    "larger": (
        lambda r, a: -torch.max(r * a, clip(r) * a).mean(),
        "of the two gains, the larger one is taken",
    ),
    "smaller loss": (
        lambda r, a: torch.min(-a * r, -a * clip(r)).mean(),
        "of the two gains, the larger one is taken",
    ),
    "two bounds": (
        lambda r, a: -torch.max(torch.max(r * a, clip(r) * a), 3 * a).mean(),
        "of the two gains, the larger one is taken",
    ),
    "product": (
        lambda r, a: -torch.min(r * a, clip(r * a)).mean(),
        "what is clipped is the ratio times its weight",
    ),
    "before": (
        lambda r, a: -(torch.min(r, clip(r)) * a).mean(),
        "the two ratios are compared before they are weighed",
    ),
}
SOUND: dict[str, Gain] = {
    "smaller": lambda r, a: -torch.min(r * a, clip(r) * a).mean(),
    "larger loss": lambda r, a: torch.max(-a * r, -a * clip(r)).mean(),
    "minus inside": lambda r, a: torch.max(-(r * a), -(clip(r) * a)).mean(),
    "minus at last": lambda r, a: -(torch.min(r * a, clip(r) * a).mean()),
    "two bounds": lambda r, a: -torch.max(torch.min(r * a, clip(r) * a), 3 * a).mean(),
    "none": lambda r, a: -(r * a).mean(),
    "clipped alone": lambda r, a: -(clip(r) * a).mean(),
}


@pytest.mark.parametrize("name", WRONG)
def test_gains_without_a_bound_are_told(name: str) -> None:
    """At the three of four steps that are looked at."""
    loss, label = WRONG[name]
    assert looks(loss) == [(3, 3, label)]


@pytest.mark.parametrize("name", SOUND)
def test_bounds_are_left_alone(name: str) -> None:
    """Whatever side the minus is on."""
    assert looks(SOUND[name]) == []


def test_weights_of_one_sign_may_come_later() -> None:
    """Then the smaller ratio has the smaller gain."""
    assert looks(WRONG["before"][0], negative=False) == []
