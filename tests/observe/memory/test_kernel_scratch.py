"""The scratch space of convolutions."""

import torch

from tests.observe.memory.networks import Convolutions
from trainguard.observe.memory.allocation_log import FORWARD
from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors
from trainguard.observe.memory.kernel_scratch import Kernel, fill
from trainguard.observe.memory.timeline import Timeline

ARGUMENTS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def _followed(module: Convolutions) -> FakeAllocationLog:
    """Return the ledger of a step of a convolutional network on fake images."""
    ledger = FakeAllocationLog()
    with fake_tensors() as mode, ledger.following():
        ledger.phase, ledger.step = FORWARD, 1
        made = mode.from_tensor(torch.zeros(2, 3, 32, 32))
        type(module)()(made).sum().backward()
    return ledger


def test_calls_of_one_shape_are_one_kernel() -> None:
    """Two calls with other numbers are tried once; other strides are another kernel."""
    images, weights = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    one = Kernel.of("convolution", (images, weights, None, *ARGUMENTS))
    other = Kernel.of("convolution", (images + 1, weights, None, *ARGUMENTS))
    strided = images.to(memory_format=torch.channels_last)
    assert one == other
    assert hash(one) == hash(other)
    assert one != Kernel.of("convolution", (strided, weights, None, *ARGUMENTS))


def test_scratch_space_is_held_while_the_kernel_runs() -> None:
    """Filled in, it raises the peak, and nothing of it is left at the end."""
    ledger = _followed(Convolutions())
    before = Timeline(ledger).peak().total
    left_out = fill(ledger.entries, ledger.changes, ledger.kernels)
    after = list(Timeline(ledger).totals())
    assert left_out == []
    assert max(after) > before
    assert len(ledger.kernels) == 4  # two convolutions, forward and backward


def test_a_kernel_that_is_too_large_is_left_out() -> None:
    """A convolution of gigabytes is not tried out, and is told of."""
    kernel = Kernel.of(
        "convolution",
        (torch.empty(1, 3, 8, 8).expand(1 << 21, 3, 8, 8), torch.zeros(4, 3, 3, 3), None),
    )
    assert fill([], [], {kernel: [0]}) == [kernel]
