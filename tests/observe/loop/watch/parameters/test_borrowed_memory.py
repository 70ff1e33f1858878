"""Optimizers that step in the memory of what another one trains, and what becomes of that."""

import pytest
import torch
from torch import nn

from trainguard.events.loop import Probe
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
def test_weights_that_are_adapted(tasks: int, copies: bool, restores: bool, told: list) -> None:
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
                adapt(net, tasks, copies)
            if restores:
                net.load_state_dict(kept)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "borrowed"]
    assert [(probe.measured, probe.reference) for probe in probes] == told
    assert "borrowed" in recorder.trace.conditions["looked"]
    assert recorder.trace.conditions.get("faults", ()) == ()
