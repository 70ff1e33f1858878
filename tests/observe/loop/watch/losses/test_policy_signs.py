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
                other = returns = -rewards if name != "paid" else rewards
                assert returns.shape == other.shape
                loss = make(log_probs, other if name == "both" else rewards)
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


def turned(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return a loss of the old probabilities over the new ones."""
    ratio = (log_probs.detach() - 0.1 - log_probs).exp()
    return -torch.min(ratio * paid, ratio.clamp(0.8, 1.2) * paid).mean()


def divided(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return the same with a quotient."""
    return -((log_probs.detach() - 0.1).exp() / log_probs.exp() * paid).mean()


def masked(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return the same of choices that count, over how many these are."""
    counted = (torch.arange(8) < 6).float()
    gain = (log_probs.detach() - log_probs).exp() * paid
    return ((0.1 * log_probs.square() - gain) * counted).sum() / counted.sum()


def negated(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return a loss of ratios that are made of negative log-probabilities."""
    own = -log_probs
    ratio = (own.detach() + 0.1 - own).exp()
    return torch.max(-paid * ratio, -paid * ratio.clamp(0.8, 1.2)).mean()


def apart(log_probs: torch.Tensor, paid: torch.Tensor) -> torch.Tensor:
    """Return an estimate of a divergence, beside what has paid."""
    away = log_probs.detach() + 0.1 - log_probs
    return (away.exp() - 1 - away).mean() - (log_probs * paid).mean()


@pytest.mark.parametrize("make", [forgotten, one_by_one, clipped, turned, divided, masked])
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
        (negated, "paid"),
        (apart, "paid"),
    ],
    ids=["minus", "clipped", "costs", "both", "opposite", "negated", "apart"],
)
def test_other_losses_are_left_alone(make: Loss, name: str) -> None:
    """What has paid is taken off, nothing has its name, or both directions have."""
    assert looks(make, name) == []


def rows_of_pay(weights_of: Callable, draw: Callable = torch.randn, cost: bool = False) -> list:
    """Make five steps with weights that are made of longer advantages; return what was seen."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(5):
            drawn, rows = draw(40), torch.randperm(40)[:16]
            cost_advantages, advantages = (drawn, -drawn.abs()) if cost else (None, drawn)
            choice = Categorical(logits=policy(torch.randn(16, 4)))
            loss = (choice.log_prob(choice.sample()) * weights_of(drawn, rows)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        del cost_advantages, advantages
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "term sign"]
    return [probe.measured for probe in found]


def test_rows_of_what_has_paid() -> None:
    """They are known by their numbers, as long as these have one sign in the table."""
    assert rows_of_pay(lambda paid, rows: paid[rows]) == [4.0]
    assert rows_of_pay(lambda paid, rows: -paid[rows]) == []
    assert rows_of_pay(lambda paid, rows: paid[rows].sign()) == []
    assert rows_of_pay(lambda paid, rows: paid[rows] ** 2) == []


def test_rows_that_tell_nothing() -> None:
    """Few numbers are in many tables, and those of a cost are meant to be added."""
    assert rows_of_pay(lambda paid, rows: paid[rows], lambda n: torch.arange(n) % 3.0) == []
    assert rows_of_pay(lambda paid, rows: paid[rows], cost=True) == []


@pytest.mark.parametrize(("sign", "seen"), [(1, [4.0]), (-1, [])])
def test_what_is_left_of_pay_without_a_base(sign: int, seen: list[float]) -> None:
    """An advantage may have no name of its own."""
    torch.manual_seed(0)
    policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*policy.parameters(), *critic.parameters()], lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(5):
            state, reward = torch.randn(16, 4), torch.randn(16)
            choice, value = Categorical(logits=policy(state)), critic(state)[:, 0]
            loss = (choice.log_prob(choice.sample()) * (reward - value).detach()).mean()
            optimizer.zero_grad()
            (sign * loss + (reward - value).square().mean()).backward()
            optimizer.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "term sign"]
    assert [probe.measured for probe in found] == seen


@pytest.mark.parametrize("name", ["cost_advantages", "lengths"])
def test_what_costs_is_none_of_what_pays(name: str) -> None:
    """It has the name of a cost, or goes with what has one."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(5):
            choice = Categorical(logits=policy(torch.randn(8, 4)))
            cost_advantages = lengths = torch.rand(8)
            advantages = lengths - 0.5 if name == "lengths" else torch.randn(8)
            weights = advantages if name == "lengths" else cost_advantages
            optimizer.zero_grad()
            (choice.log_prob(choice.sample()) * weights).mean().backward()
            optimizer.step()
    assert "term sign" in recorder.trace.conditions["looked"]
    assert [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "term sign"] == []


def test_an_optimizer_that_climbs_is_left_alone() -> None:
    """It makes larger what others make smaller."""
    assert looks(forgotten, maximize=True) == []
