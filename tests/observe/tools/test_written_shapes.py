"""Views whose axes are named, and stand in another order."""

import pytest
import torch
from torch import nn

from trainguard.observe.tools.written_shapes import exchanges_named_axes


class Exchanged(nn.Module):
    """Names its axes, and views them in another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, T, C), as it is meant."""
        n, c, t = x.shape
        return x.reshape(n, t, c)


class AsATuple(nn.Module):
    """Says so in a tuple, of what `size` has told."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, T, C), as it is meant."""
        (n, c, t) = x.size()
        return x.view((n, t, c))


class InOrder(nn.Module):
    """Keeps the order of its axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what it was given."""
        n, c, t = x.shape
        return x.reshape(n, c, t)


class Joined(nn.Module):
    """Views other shapes than that of its axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N * T, C)."""
        n, c, t = x.shape
        y = x.transpose(1, 2)
        return y.reshape(n, t, c) + x.reshape(n * t, c) + x.reshape(t, n) + x.reshape(x.shape)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Exchanged(), True),
        (AsATuple(), True),
        (nn.Sequential(nn.Linear(3, 3), Exchanged()), True),
        (InOrder(), False),
        (Joined(), False),
        (nn.Sequential(nn.Linear(3, 3)), False),
    ],
    ids=["reshape", "view", "in a part", "in order", "other shapes", "of torch"],
)
def test_axes_in_another_order(module: nn.Module, expected: bool) -> None:
    """Of the very thing whose axes were named."""
    assert exchanges_named_axes(module) == expected
