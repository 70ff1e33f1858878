"""In which order returns weigh the steps of an episode."""

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def returns_of(rewards: np.ndarray, discount: float = 0.9) -> np.ndarray:
    """Return the discounted sum of what follows each step."""
    made, running = [], 0.0
    for reward in rewards[::-1]:
        running = reward + discount * running
        made.insert(0, running)
    return np.array(made)


def orders_in(recorder: Recorder) -> list[tuple[float, float]]:
    """Return what is told of the order of returns: how many are in reverse, of how many."""
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "returns reversed"]
    return [(probe.measured, probe.reference) for probe in probes]


def found(weigh, *, equal: bool = False, steps: int = 20) -> list[tuple[float, float]]:
    """Learn from episodes weighed by what is made of rewards; return what is told."""
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            rewards = np.ones(steps) if equal else draw.normal(size=steps)
            weights = torch.tensor(weigh(rewards)).float()
            optimizer.zero_grad()
            chosen = net(torch.randn(steps, 3)).log_softmax(1)[:, 0]
            (-chosen * weights).mean().backward()
            optimizer.step()
    return orders_in(recorder)


def normalise(row: np.ndarray) -> np.ndarray:
    """Return numbers of mean 0 and deviation 1."""
    return (row - row.mean()) / row.std()


@pytest.mark.parametrize("equal", [False, True], ids=["rewards", "equal rewards"])
@pytest.mark.parametrize("scale", [lambda r: r, lambda r: -3 * r, normalise])
def test_an_order_is_known(equal: bool, scale) -> None:
    """Whatever the scale, and where all rewards are the same."""
    assert found(lambda r: scale(returns_of(r)), equal=equal) == [(0.0, 3.0)]
    assert found(lambda r: scale(returns_of(r)[::-1].copy()), equal=equal) == [(3.0, 3.0)]


def test_returns_without_a_discount() -> None:
    """Known where rewards differ; a ramp says nothing."""
    assert found(lambda r: returns_of(r, 1.0)) == [(0.0, 3.0)]
    assert found(lambda r: returns_of(r, 1.0)[::-1].copy()) == [(3.0, 3.0)]
    assert found(lambda r: returns_of(r, 1.0)[::-1].copy(), equal=True) == []


@pytest.mark.parametrize(
    "weigh",
    [
        lambda r: r,
        lambda r: np.full(len(r), r.sum()),
        lambda r: returns_of(r) + np.sin(np.arange(len(r))),
        lambda r: np.random.default_rng(1).normal(size=len(r)),
    ],
    ids=["rewards", "sum", "baseline", "noise"],
)
def test_other_weights(weigh) -> None:
    """Rewards themselves, their sum, returns less what is expected, and anything else."""
    assert found(weigh) == []


def test_short_episodes() -> None:
    """Of few steps any three numbers fit."""
    assert found(lambda r: returns_of(r)[::-1].copy(), steps=6) == []


def test_what_is_called_a_reward_may_be_anything() -> None:
    """Numbers of other kinds and lengths are left alone, and the user's memory stays theirs."""
    r, reward = torch.zeros(20, dtype=torch.bfloat16), np.array(["a"] * 20)
    rewards = torch.ones(20, dtype=torch.float64)
    assert found(lambda row: returns_of(row)[::-1].copy()) == [(3.0, 3.0)]
    rewards.resize_(40)
    assert (len(r), len(reward), len(rewards)) == (20, 20, 40)


def test_constants_that_are_no_weights() -> None:
    """Complex ones, and large ones, which are not copied."""
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        rewards = [1.0] * 20
        out = net(torch.randn(20, 3))[:, 0]
        turned = (out * torch.ones(20, dtype=torch.complex64)).abs().sum()
        (turned + (out * torch.ones(300, 20)).sum()).backward()
        optimizer.step()
    assert len(rewards) == 20
    assert "faults" not in recorder.trace.conditions


def weigh_steps(
    order, join, *, episodes: int = 1, batched: bool = False, equal: bool = False
) -> dict[str, float]:
    """Learn from episodes step by step, their returns in an order; return what is told."""
    draw, gamma = np.random.default_rng(0), 1.0 if equal else 0.93
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            chosen, weights = [], []
            for _ in range(episodes):
                rewards = 12 * [1.0] if equal else list(draw.normal(size=12))
                states = torch.randn(12, 3)
                every = net(states).log_softmax(1)[:, :1].gather(1, torch.zeros(12, 1).long())
                single = [net(row).log_softmax(0).gather(0, torch.tensor([1])) for row in states]
                chosen += [row[0] for row in (every if batched else single)]
                weights += list(order(returns_of(np.array(rewards), gamma)))
            optimizer.zero_grad()
            join(chosen, torch.tensor(weights).float()).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and "returns" in e.probe]
    return {e.probe: e.measured / e.reference for e in probes}


JOINED = {
    "stacked": lambda chosen, weights: -(torch.stack(chosen) * weights).sum(),
    "a list": lambda chosen, weights: torch.stack(
        [-one * weight for one, weight in zip(chosen, weights, strict=True)]
    ).mean(),
    "added up": lambda chosen, weights: sum(
        -one * weight.item() for one, weight in zip(chosen, weights, strict=True)
    ),
}


@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED)
def test_steps_one_by_one(join) -> None:
    """Stacked, weighed each by itself, or added up: the order is known, and others are told."""
    assert weigh_steps(lambda r: r, join) == {"returns reversed": 0}
    assert weigh_steps(lambda r: r[::-1], join) == {"returns reversed": 1}
    mixed = weigh_steps(lambda r: np.concatenate([r[::2], r[1::2]]), join)
    assert mixed == {"returns reversed": 0, "returns mixed": 1}


def test_steps_of_a_batch_may_be_in_any_order() -> None:
    """What is computed at once may have been drawn in that order."""
    stacked = JOINED["stacked"]
    assert weigh_steps(lambda r: np.roll(r, 5), stacked, batched=True) == {}


def shuffled(chosen, weights) -> torch.Tensor:
    """Join steps and their weights in one and the same order."""
    order = torch.tensor([3, 0, 7, 5, 1, 2, 11, 4, 6, 8, 10, 9])
    return -(torch.stack([chosen[place] for place in order]) * weights[order]).sum()


def test_steps_that_go_with_their_returns() -> None:
    """They may be in any order together; and a ramp says nothing."""
    assert weigh_steps(lambda r: r, shuffled) == {}
    stacked = JOINED["stacked"]
    assert weigh_steps(lambda r: r, stacked, equal=True) == {}
    assert weigh_steps(lambda r: r[::-1], stacked, equal=True) == {}


def test_several_episodes_in_a_row() -> None:
    """The last one is known by its rewards."""
    stacked = JOINED["stacked"]
    assert weigh_steps(lambda r: r, stacked, episodes=2) == {"returns reversed": 0}
    assert weigh_steps(lambda r: r[::-1], stacked, episodes=2) == {"returns reversed": 1}


def side_by_side(weigh, *, turned: bool = False) -> list[tuple[float, float]]:
    """Learn from five episodes at once, whose weights are made of (steps, episodes)."""
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            rewards = draw.normal(size=(12, 5))
            weights = torch.tensor(weigh(rewards)).float()
            rewards = rewards.T.copy() if turned else list(torch.tensor(rewards))
            weights = weights.T if turned else weights
            optimizer.zero_grad()
            chosen = net(torch.randn(*weights.shape, 3)).log_softmax(-1)[..., 0]
            (-chosen * weights).mean().backward()
            optimizer.step()
            del rewards
    return orders_in(recorder)


def apart_from_others(returns: np.ndarray) -> np.ndarray:
    """Return how much more each episode gets from a step on than the others."""
    return (returns - returns.mean(1, keepdims=True)) / returns.std()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scale", [lambda r: r, normalise, apart_from_others])
def test_episodes_side_by_side(scale, turned: bool) -> None:
    """Of each step, the rewards of all; a mean over them may be taken off."""
    if turned and scale is apart_from_others:
        return
    told = {"turned": turned}
    assert side_by_side(lambda r: scale(returns_of(r)), **told) == [(0.0, 3.0)]
    assert side_by_side(lambda r: scale(returns_of(r)[::-1].copy()), **told) == [(3.0, 3.0)]
    assert side_by_side(lambda r: np.cos(returns_of(r)), **told) == []


def test_episodes_one_after_the_other_in_one_table() -> None:
    """Of (episodes, steps), where the rewards of the last one alone are still there."""
    draw = np.random.default_rng(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            both = draw.normal(size=(2, 12))
            rewards = both[1]
            weights = np.stack([returns_of(row)[::-1] for row in both])
            optimizer.zero_grad()
            chosen = net(torch.randn(2, 12, 3)).log_softmax(-1)[..., 0]
            (-chosen * torch.tensor(weights).float()).mean().backward()
            optimizer.step()
            del rewards
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "returns reversed"]
    assert [(probe.measured, probe.reference) for probe in probes] == [(3.0, 3.0)]


@pytest.mark.parametrize("shape", [(40,), (20, 6)], ids=["one episode", "side by side"])
@pytest.mark.parametrize("scale", [lambda r: r, normalise])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_expected_is_taken_off(shape: tuple[int, ...], scale, turned: bool) -> None:
    """The values of a critic, whatever they are, as long as they can be named."""
    assert beside_values(shape, scale, turned=turned) == [(3.0 * turned, 3.0)]


def test_what_is_taken_off_has_to_be_named() -> None:
    """Of another shape, or of few steps, it says nothing."""
    assert beside_values((20, 6), normalise, turned=True, kept=5) == []
    assert beside_values((20,), normalise, turned=True) == []


def beside_values(
    shape: tuple[int, ...], scale, *, turned: bool, kept: int = 6
) -> list[tuple[float, float]]:
    """Learn from returns less values; return what is told of their order."""
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            rewards, values = draw.normal(size=shape), draw.normal(size=shape)
            returns = returns_of(rewards)[:: -1 if turned else 1]
            weights = torch.tensor(scale(returns - values)).float()
            values = values[..., :kept] if len(shape) > 1 else values
            optimizer.zero_grad()
            chosen = net(torch.randn(*shape, 3)).log_softmax(-1)[..., 0]
            (-chosen * weights).mean().backward()
            optimizer.step()
            assert len(values) == len(rewards)
    return orders_in(recorder)
