"""Tensors that have shapes and no bytes."""

import copy

import torch
from torch import nn

from trainguard.observe.usage.fake import faked


class Scaled(nn.Module):
    """A layer with a constant in it that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = torch.tensor(3.0)


def test_a_copy_shares_its_mode() -> None:
    """An average is a copy of the model; with a mode of its own it would belong nowhere."""
    with faked() as mode:
        copied = copy.deepcopy(Scaled())
        assert copied.scale.fake_mode is copied.layer.weight.fake_mode is mode
        assert (copied.scale * copied.layer.weight).shape == (3, 3)
