"""What is tried on a module reads its parameters where they are, and writes to none."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.observe.loop.watch.models.test_module_copy import INPUTS, tried


def test_parameters_are_read_where_they_are() -> None:
    """A copy of a large model costs next to no memory, and the gradients stay where they are."""
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    net(torch.ones(1, 512)).sum().backward()
    held = [(p.data_ptr(), p.grad) for p in net.parameters()]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        assert tried(net, inputs=(torch.ones(1, 512),)) is not None
    events = sorted(measured.events(), key=lambda event: event.time_range.start)
    asked = [event.self_cpu_memory_usage for event in events if event.self_cpu_memory_usage > 0]
    assert 0 < sum(asked) < 512 * 512 * 4
    assert [(p.data_ptr(), p.grad) for p in net.parameters()] == held


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.mul_(2),
        lambda weight: weight.data.add_(1),
        lambda weight: weight.view(-1)[:2].fill_(0),
        lambda weight: torch.mul(weight, 2, out=weight),
        lambda weight: torch._foreach_mul_([weight], 2),
        lambda weight: weight.detach().T.zero_(),
    ],
)
def test_parameters_are_never_written(write) -> None:
    """A module that writes to its weights when it is called is not tried."""

    class Writes(nn.Linear):
        """A layer that changes its weight in the forward pass."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Write, and go on."""
            with torch.no_grad():
                write(self.weight)
            return super().forward(inputs)

    layer = Writes(4, 3)
    before = layer.weight.detach().clone()
    assert tried(layer) is None
    assert torch.equal(layer.weight, before)


def test_modules_that_share_weights_are_tried() -> None:
    """Tied weights and recurrent layers give in the copy what they give in the module."""
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    for module in (tied, nn.LSTM(4, 3), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))):
        module.eval()
        with torch.no_grad():
            expected = module(*INPUTS)
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert torch.equal(tried(module)[0], expected)
