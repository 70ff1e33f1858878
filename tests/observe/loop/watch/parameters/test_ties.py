"""Shared parameters that are taken apart under the recorder, by torch and by the user's lines."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules import module as registry

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def build() -> nn.Sequential:
    """Return two layers that share their weight."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    return net


def assign(net: nn.Sequential, apart: float = 0.0) -> None:
    """Load a copy of the model's state, in which the weights are so far apart."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    state["2.weight"] += apart
    net.load_state_dict(state, assign=True)


def convert(net: nn.Sequential) -> None:
    """Move a model to a device of which torch makes new parameters."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        net.double().float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def untie(net: nn.Sequential) -> None:
    """Give the last layer a weight of its own."""
    net[2].weight = nn.Parameter(net[0].weight.detach().clone())


def tie_again(net: nn.Sequential) -> None:
    """Share the weight after a load that took it apart."""
    assign(net)
    net[2].weight = net[0].weight


def parametrize(net: nn.Sequential) -> None:
    """Compute the first weight from the shared one."""
    nn.utils.parametrizations.weight_norm(net[0])


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (assign, [1.0]),
        (convert, [1.0]),
        (lambda net: assign(net, 1.0), [0.0]),
        (untie, []),
        (tie_again, []),
        (parametrize, []),
        (lambda net: None, []),
    ],
)
def test_ties_that_torch_undoes(edit: Callable[[nn.Sequential], None], told: list[float]) -> None:
    """What the user's own lines put into a module is meant, and nothing of ours stays."""
    with Recorder("x") as recorder:
        net = build()
        edit(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "tied"]
    assert [probe.reference for probe in probes] == told
    assert all("test_ties.py:" in probe.source for probe in probes)
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert not registry._global_parameter_registration_hooks
