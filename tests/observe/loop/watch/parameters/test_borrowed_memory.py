"""Steps in the memory of what another optimizer trains, and what becomes of that."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def adapt(net: nn.Module, tasks: int, copies: bool) -> None:
    """Step with new optimizers of detached weights, and evaluate the net."""
    for _ in range(tasks):
        weights = [p.detach().clone() if copies else p.detach() for p in net.parameters()]
        optimizer = torch.optim.SGD([weight.requires_grad_() for weight in weights], lr=0.1)
        sum(weight.square().sum() for weight in weights).backward()
        optimizer.step()
        with torch.no_grad():
            net(torch.ones(2, 3))


def adapt_by_hand(net: nn.Module, tasks: int, copies: bool) -> None:
    """Step detached weights along their gradients, and evaluate the net."""
    for _ in range(tasks):
        weights = [p.detach().clone() if copies else p.detach() for p in net.parameters()]
        leaves = [weight.requires_grad_() for weight in weights]
        for _ in range(2):
            moves = torch.autograd.grad(sum(leaf.square().sum() for leaf in leaves), leaves)
            with torch.no_grad():
                for leaf, move in zip(leaves, moves, strict=True):
                    leaf -= 0.1 * move
        with torch.no_grad():
            net(torch.ones(2, 3))


@pytest.mark.parametrize("step", [adapt, adapt_by_hand])
@pytest.mark.parametrize(
    ("tasks", "copies", "restores", "told"),
    [
        (2, False, False, [(3.0, 3.0)]),
        (1, False, False, [(0.0, 3.0)]),
        (2, True, False, []),
        (2, False, True, []),
    ],
    ids=["several tasks", "one task", "copies", "restored"],
)
def test_weights_that_are_adapted(
    step, tasks: int, copies: bool, restores: bool, told: list
) -> None:
    """They are told where the training goes on from them: how often, and how often of several."""
    net = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(4):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            kept = {name: value.clone() for name, value in net.state_dict().items()}
            if epoch < 3:
                step(net, tasks, copies)
            if restores:
                net.load_state_dict(kept)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "borrowed"]
    assert [(probe.measured, probe.reference) for probe in probes] == told
    assert "borrowed" in recorder.trace.conditions["looked"]
    assert recorder.trace.conditions.get("faults", ()) == ()


def test_leaves_that_stay() -> None:
    """Leaves that are kept for the whole run are a second training, and no evaluation's."""
    net = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        leaf = net.weight.detach().requires_grad_()
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            for _ in range(2):
                (move,) = torch.autograd.grad(leaf.square().sum(), [leaf])
                with torch.no_grad():
                    leaf -= 0.1 * move
                    net(torch.ones(2, 3))
    (probe,) = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "borrowed"]
    assert (probe.measured, probe.reference) == (0, 1)  # the first time it was new


def test_gradients_that_nothing_follows() -> None:
    """A leaf in the model's memory that is only asked for its gradient moves nothing."""
    net = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            for _ in range(2):
                leaf = net.weight.detach().requires_grad_()
                torch.autograd.grad(leaf.square().sum(), [leaf])
            with torch.no_grad():
                net(torch.ones(2, 3))
                net.weight.clamp_(-0.01, 0.01)
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "borrowed"]
    assert "borrowed" in recorder.trace.conditions["looked"]
