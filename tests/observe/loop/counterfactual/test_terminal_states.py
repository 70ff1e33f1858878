"""States after the end of an episode, edited: who may learn from them, and what marks them."""

import copy
import re
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


class Moves(NamedTuple):
    """A batch of moves."""

    state: torch.Tensor
    next_state: torch.Tensor
    done: torch.Tensor


def ask(loss_of) -> list[WhatIf]:
    """Record a training, and return what it was asked about terminal states."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        target = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            states = torch.randn(2, 16, 3)
            optimizer.zero_grad()
            loss_of(net, target, states[0], states[1], torch.arange(16) % 5 == 0).backward()
            optimizer.step()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "terminal states edited"]


def ends(net, target, state, next_state, done) -> torch.Tensor:
    """Stop at the ends."""
    wanted = (~done).float() * target(next_state)[:, 0].detach()
    return F.mse_loss(net(state)[:, 0], wanted)


def goes_on(net, target, state, next_state, done) -> torch.Tensor:
    """Go on after the ends, by targets that are computed first."""
    with torch.no_grad():
        wanted = target(next_state)
    return F.mse_loss(net(state), wanted)


def turned(net, target, state, obs_next, dones) -> torch.Tensor:
    """Mark what does not end, and forget it."""
    not_done = (~dones).float()
    del dones
    wanted = target(obs_next)[:, 0].detach() + 0 * not_done
    return F.mse_loss(net(state)[:, 0], wanted)


def kept(net, target, state, next_state, done) -> torch.Tensor:
    """Mark what goes on by a mask that is named for the ends, and forget it."""
    done_mask = (~done).float()
    del done
    wanted = target(next_state)[:, 0].detach() + 0 * done_mask
    return F.mse_loss(net(state)[:, 0], wanted)


def masked(net, target, state, next_state, done) -> torch.Tensor:
    """Stop at the ends by such a mask."""
    done_mask = (~done).float()
    del done
    return F.mse_loss(net(state)[:, 0], done_mask * target(next_state)[:, 0].detach())


def named(net, target, first, second, third) -> torch.Tensor:
    """Keep the batch in fields of a class that is a variable too."""
    kind = Moves  # the class in a variable, beside what it makes
    batch = kind(first, second, third)
    del first, second, third
    wanted = target(batch.next_state).detach()
    return F.mse_loss(net(batch.state), wanted)


def short(net, target, bs, bs2, bdone) -> torch.Tensor:
    """Go on after the ends, in a batch whose names all begin alike."""
    with torch.no_grad():
        wanted = target(bs2)
    return F.mse_loss(net(bs), wanted)


def crashed(net, target, state, next_state, fell) -> torch.Tensor:
    """Go on after what has ended an episode, called by its name."""
    with torch.no_grad():
        wanted = target(next_state)
    return F.mse_loss(net(state), wanted)


def nameless(net, target, o, n, d) -> torch.Tensor:
    """Go on after the ends, in variables of one letter."""
    with torch.no_grad():
        wanted = target(n)
    return F.mse_loss(net(o), wanted)


def older(net, target, o, n, d) -> torch.Tensor:
    """Learn from what another network says of the same states."""
    with torch.no_grad():
        wanted = target(o)
    return F.mse_loss(net(o), wanted)


def predicts(net, target, state, next_state, done) -> torch.Tensor:
    """Predict what follows."""
    return F.mse_loss(net(state).expand(-1, 3), next_state)


def compares(net, target, state, next_state, done) -> torch.Tensor:
    """Learn from codes of both."""
    return F.mse_loss(net(state), 0.9 * net(next_state))


def cut_off(net, target, state, next_state, truncated) -> torch.Tensor:
    """Know only of the clock."""
    return F.mse_loss(net(state), target(next_state).detach())


def acts(net, target, state, next_state, done) -> torch.Tensor:
    """Go on from what follows, as where an environment begins anew by itself."""
    with torch.no_grad():
        value = target(next_state)
    state = next_state
    return F.mse_loss(net(state.clone()), value)


def learns_more(net, target, state, next_state, done) -> torch.Tensor:
    """Learn from what was played in two moments."""
    with torch.no_grad():
        wanted = target(torch.cat([state, next_state])), target(next_state)
    return F.mse_loss(net(torch.cat([state, state + 1])), torch.cat([wanted[1], wanted[1]]))


@pytest.mark.parametrize("loss_of", [goes_on, turned, kept, named, short, crashed, nameless])
def test_what_looks_beyond_the_end(loss_of) -> None:
    """Its loss changes, however the ends are marked, and whenever the target is computed."""
    (event,) = ask(loss_of)
    assert event.outcome == "answered"
    assert event.measured > 100 * event.reference > 0
    assert event.label == "what follows 4 of 16 states"
    words = r"with another state after state \d+, which is terminal, the loss is \S+ instead of \S+"
    assert re.fullmatch(words, event.smallest)


@pytest.mark.parametrize("loss_of", [ends, masked])
def test_what_stops_at_the_end(loss_of) -> None:
    """Its loss stays as it is, to the last bit."""
    (event,) = ask(loss_of)
    assert (event.outcome, event.measured) == ("answered", 0.0)


@pytest.mark.parametrize("loss_of", [predicts, compares, older])
def test_what_learns_from_what_follows(loss_of) -> None:
    """Models of the world and codes may learn from the last state of an episode too."""
    assert {event.outcome for event in ask(loss_of)} == {"void"}


def test_what_is_cut_off() -> None:
    """A value goes on where only the clock has run out."""
    assert ask(cut_off) == []


@pytest.mark.parametrize("loss_of", [acts, learns_more])
def test_what_follows_is_a_state_itself(loss_of) -> None:
    """Where an agent acts on, what follows an end belongs to the next episode."""
    assert "answered" not in {event.outcome for event in ask(loss_of)}
