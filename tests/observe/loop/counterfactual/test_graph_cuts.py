"""States that are detached in each step in time, and terms made of gradients without a graph."""

import pytest
import torch
from torch import nn

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual.marked_graph import CUT, find_dead_parts, mark
from trainguard.observe.loop.recorder import Recorder

STATES, GRADIENTS = "states with their graph", "gradients with their graph"


class Net(nn.Module):
    """A cell, a layer and a head, from which losses are made."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTMCell(3, 8), nn.Linear(8, 1)
        self.onward = nn.Linear(11, 8)

    def forward(self, inputs):
        """Return one number for each sample."""
        return self.last(torch.tanh(self.onward(torch.cat([inputs, inputs.new_zeros(16, 8)], 1))))


def ask(loss_of) -> dict[str, WhatIf]:
    """Record three steps, and return the first answer to each question."""
    torch.manual_seed(0)
    points = torch.randn(4, 16, 5, 3)
    with Recorder("x") as recorder:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in points:
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return {event.question: event for event in reversed(asked) if event.outcome == "answered"}


def many_to_one(net, batch):
    """Detach both states in each step, on two lines, and judge the last one."""
    hidden = memory = torch.zeros(16, 8)
    for values in batch.unbind(1):
        hidden, memory = net.cell(values, (hidden, memory))
        last = net.last(hidden)
        hidden = hidden.detach()
        memory = memory.data
    return last.pow(2).mean()


def memory_kept(net, batch):
    """Detach one of the two states: the other one leads through time."""
    hidden = memory = torch.zeros(16, 8)
    total = 0.0
    for values in batch.unbind(1):
        hidden, memory = net.cell(values, (hidden.detach(), memory))
        total = total + net.last(hidden).pow(2).mean()
    return total


def by_hand(net, batch):
    """Detach a state that is joined with the values, without a recurrent layer."""
    state, states = torch.zeros(16, 8), []
    for values in batch.unbind(1):
        state = torch.tanh(net.onward(torch.cat([values, state.detach()], 1)))
        states.append(state)
    return net.last(torch.stack(states)).pow(2).mean()


def two_steps_each(net, batch):
    """Detach the state after each second step."""
    state, total = torch.zeros(16, 8), 0.0
    for values in torch.cat([batch, batch], 1).unbind(1):
        for _ in range(2):
            state = torch.tanh(net.onward(torch.cat([values, state], 1)))
        total = total + net.last(state).pow(2).mean()
        state = state.detach()
    return total


def shown(net, batch):
    """Detach what is looked at in each step, and turn it into numbers."""
    state, total = net.cell(batch[:, 0]), 0.0
    for values in batch.unbind(1):
        state = net.cell(values, state)
        total = total + net.last(state[0]).pow(2).mean()
        state[0].detach().numpy().mean()
    return total


@pytest.mark.parametrize(
    ("loss_of", "handovers", "layers"),
    [
        (many_to_one, 4.0, (1.0,)),
        (by_hand, 4.0, (0.0,)),
        (memory_kept, 0.0, (0.0,)),
        (two_steps_each, 0.0, (0.0,)),
        (shown, 0.0, (0.0,)),
    ],
)
def test_states(loss_of, handovers, layers) -> None:
    """Hand-overs count where each of them is detached, and each state is one step in time."""
    answer = ask(loss_of)[STATES]
    assert (answer.measured, answer.numbers) == (handovers, layers)


def slope(net, batch, **kinds):
    """Return the outputs, and their gradients for the inputs."""
    inputs = batch[:, 0].requires_grad_(True)
    outputs = net(inputs)
    return inputs, outputs, torch.autograd.grad(outputs.sum(), inputs, **kinds)[0]


def penalty(net, batch):
    """Add a penalty without a graph, in a list of terms."""
    _, outputs, gradient = slope(net, batch, retain_graph=True)
    return torch.stack([outputs.pow(2).mean(), 10 * (gradient.norm(dim=1) - 1).pow(2).mean()]).sum()


def residual(net, batch):
    """Add a residual that has a graph for the inputs alone."""
    inputs, outputs, gradient = slope(net, batch, retain_graph=True)
    return outputs.pow(2).mean() - (gradient - inputs.sin()).abs().mean()


def attack(net, batch):
    """Move the inputs along their gradient."""
    inputs, _, gradient = slope(net, batch, retain_graph=True)
    return net(inputs + 0.1 * gradient.sign()).pow(2).mean()


def weight(net, batch):
    """Weight a term by a gradient."""
    _, outputs, gradient = slope(net, batch, retain_graph=True)
    return outputs.pow(2).mean() * gradient.norm()


def equation(net, batch):
    """Add a gradient to the outputs that it is of."""
    _, outputs, gradient = slope(net, batch, retain_graph=True)
    return (outputs - gradient).abs().mean()


def bend(net, batch):
    """Add a gradient of a gradient to the outputs that both are of."""
    inputs, outputs, gradient = slope(net, batch, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), inputs, retain_graph=True)
    return (outputs - second).abs().mean()


@pytest.mark.parametrize(
    ("loss_of", "terms", "parts", "again"),
    [
        (penalty, 1.0, 0, 0),
        (residual, 1.0, 0, 0),
        (attack, 0.0, 1, 0),
        (weight, 0.0, 1, 0),
        (equation, 1.0, 1, 0),
        (bend, 1.0, 1, 1),
    ],
)
def test_gradients(loss_of, terms, parts, again) -> None:
    """A term counts that moves parameters by its gradients alone, or else a part of one."""
    answer = ask(loss_of)[GRADIENTS]
    assert (answer.measured, answer.numbers) == (terms, (float(parts), float(again)))


def test_nothing_to_ask() -> None:
    """Gradients with their graph, and a loss without either, are no matter."""
    answers = ask(lambda net, batch: slope(net, batch, create_graph=True)[2].pow(2).mean())
    assert not {STATES, GRADIENTS} & set(answers)


PARTS = {
    "residual": (lambda u, du, other: (du + 2 * u - 1).pow(2).mean(), True),
    "on the far side": (lambda u, du, other: nn.functional.mse_loss(u, 3 * du), True),
    "a sum of terms": (lambda u, du, other: u.mean() + 0.1 * (u - du).abs().mean(), True),
    "of another network": (lambda u, du, other: (other - du).pow(2).mean(), False),
    "a step": (lambda u, du, other: torch.tanh(u - du).mean(), False),
    "a weight": (lambda u, du, other: (u * du).pow(2).mean(), False),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_terms(name) -> None:
    """Derivatives that are added to what learns as constants are told of, and no other use."""
    loss_of, wrong = PARTS[name]
    net, other = nn.Linear(3, 1), nn.Linear(3, 1)
    inputs = torch.randn(8, 3, requires_grad=True)
    made = torch.tanh(net(inputs))
    (slope,) = torch.autograd.grad(made.sum(), inputs, create_graph=True)
    cut = mark(slope[:, :1].clone(), CUT, "net.py:7")
    held = {id(p) for p in (*net.parameters(), *other.parameters())}
    assert find_dead_parts(loss_of(made, cut, other(inputs)), held) == ["net.py:7"] * wrong
