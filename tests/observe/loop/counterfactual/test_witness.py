"""The witness: what a child tells of its step."""

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.recorder import Recorder


def test_gradients_of_this_run_alone() -> None:
    """What an optimizer of an earlier training has is none of them."""
    left = nn.Linear(3, 3)
    left.weight.grad = torch.ones(3, 3)
    kept = torch.optim.SGD(left.parameters(), lr=0.1)
    with Recorder("x", probe=False) as recorder:
        net = nn.Linear(6, 1, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        held = list(Witness(recorder, Exit(-1), net)._held())
    assert len(kept.param_groups) == 1
    assert [gradient.numel() for gradient in held] == [6]
