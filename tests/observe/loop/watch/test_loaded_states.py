"""States that are loaded under the recorder, in every way that torch takes them."""

import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder


def test_a_state_may_be_given_by_its_name() -> None:
    """As `state_dict=`, which is what torch's own parameter is called."""
    net, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        net.load_state_dict(state_dict=other.state_dict(), strict=True)
        optimizer.load_state_dict(state_dict=optimizer.state_dict())
    assert torch.equal(net.weight, other.weight)
    assert recorder.trace.conditions.get("faults", ()) == ()
