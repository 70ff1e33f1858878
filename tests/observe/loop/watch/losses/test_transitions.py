"""Moves of an agent: what tells that nothing moved."""

import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def found(moves) -> list[tuple[float, float]]:
    """Learn from batches of moves, and return how many states stayed, of how many."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            moves(net, torch.randn(8, 2)).backward()
            optimizer.step()
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [(probe.measured, probe.reference) for probe in probes if probe.probe == "moves"]


def stays(net, obs) -> torch.Tensor:
    """Learn of states that are followed by themselves."""
    next_obs, reward = obs.clone(), torch.randn(8)
    with torch.no_grad():
        wanted = reward + net(next_obs)[:, 0]
    return nn.functional.mse_loss(net(obs)[:, 0], wanted)


def moves_a_little(net, obs) -> torch.Tensor:
    """Learn of states of which some stay."""
    next_obs, reward = obs.clone(), torch.randn(8)
    next_obs[:6] += 1
    with torch.no_grad():
        wanted = reward + net(next_obs)[:, 0]
    return nn.functional.mse_loss(net(obs)[:, 0], wanted)


def without_rewards(net, obs) -> torch.Tensor:
    """Compare two codes of the same."""
    new_obs = obs.clone()
    with torch.no_grad():
        wanted = net(new_obs)
    return nn.functional.mse_loss(net(obs), wanted + 1)


def of_one_state(net, obs) -> torch.Tensor:
    """Learn of a world with one state."""
    obs = torch.ones_like(obs)
    next_obs, reward = obs.clone(), torch.randn(8)
    with torch.no_grad():
        wanted = reward + net(next_obs)[:, 0]
    return nn.functional.mse_loss(net(obs)[:, 0], wanted)


@pytest.mark.parametrize("moves", [without_rewards, of_one_state])
def test_what_is_no_move(moves) -> None:
    """Without rewards it is another kind of batch, and worlds of one state have nothing to move."""
    assert found(moves) == []


def test_what_stays() -> None:
    """States that are followed by themselves are counted."""
    assert found(stays) == [(24.0, 24.0)]
    assert found(moves_a_little) == [(6.0, 24.0)]


def learn_actions(moves) -> list[tuple[float, float]]:
    """Learn values of three actions from states and targets; return how many states stayed."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(2, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            b, c = moves(torch.randn(8, 2))
            with torch.no_grad():
                y = torch.randn(8) + net(c).max(1).values
            chosen = net(b).gather(1, torch.randint(3, (8, 1))).squeeze(1)
            nn.functional.smooth_l1_loss(chosen, y).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [(probe.measured, probe.reference) for probe in probes if probe.probe == "moves"]


@SHAPES
def test_states_of_no_name() -> None:
    """What is asked without a graph follows; unless it is the very states, as a teacher's is."""
    assert learn_actions(lambda b: (b, b.clone())) == [(24.0, 24.0)]
    assert learn_actions(lambda b: (b, torch.cat([b[:2], b[2:] + 1]))) == [(6.0, 24.0)]
    assert learn_actions(lambda b: (b, b)) == []
    assert learn_actions(lambda b: (torch.ones_like(b), torch.ones(8, 2))) == []


def test_probabilities_are_no_values() -> None:
    """A policy is asked twice about the same states: what it said is compared with what it says."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(2, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            b, actions = torch.randn(8, 2), torch.randint(3, (8, 1))
            with torch.no_grad():
                old = net(b.clone()).log_softmax(1).gather(1, actions)
            optimizer.zero_grad()
            ratio = (net(b).log_softmax(1).gather(1, actions) - old).exp()
            (-ratio * torch.randn(8, 1)).mean().backward()
            optimizer.step()
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "moves"]
