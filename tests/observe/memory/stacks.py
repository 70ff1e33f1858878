"""Layers whose memory the tests declare budgets for, and how one invariant is judged on them."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, verdict
from trainguard.judging.verdict import Config, Verdict


class Block(nn.Module):
    """A layer with attention, written out or fused."""

    def __init__(self, width: int, written_out: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.written_out, self.checkpointed = written_out, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, recomputed in the backward pass where that is switched on."""
        if self.checkpointed:
            return checkpoint(self.mixed, x, use_reentrant=False)
        return self.mixed(x)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """Attend from each position to all."""
        q, k, v = self.mix(x).chunk(3, -1)
        if self.written_out:
            return x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)
        mixed = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return x + self.out(mixed[:, 0]).tanh()


class Stack(nn.Module):
    """Some layers, and positions for so many steps at the most."""

    def __init__(
        self, width: int = 8, layers: int = 1, written_out: bool = False, longest: int = 0
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block(width, written_out) for _ in range(layers)))
        self.longest = longest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output."""
        if self.longest and x.shape[1] > self.longest:
            raise ValueError("no position is left")
        return self.layers(x)


class Hungry(nn.Module):
    """A layer that decides by a value, so that it runs on real tensors, and then takes a lot."""

    def __init__(self, megabytes: int, times: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.size, self.times = megabytes << 18, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take so much memory so many times, each time a little at once."""
        if x.sum() > 1e9:
            return x
        kept = [torch.empty(self.size) for _ in range(self.times)]
        return self.layer(x) + len(kept)


def switch_on(model: Stack) -> None:
    """Switch activation checkpointing on in every layer."""
    for layer in model.layers:
        layer.checkpointed = True


def judged(subject: Any, name: str) -> Verdict:
    """Judge one invariant on a subject."""
    (made,) = find_invariants(f"memory.{name}")
    place = Config("cpu", "float32") if made.per == "dtype" else Config()
    return verdict(subject, made, place, Observations(Settings()))


def stack(budget: tg.Budget, **arguments: Any) -> tg.Model:
    """Declare the layers with a budget."""
    return tg.Model(
        Stack, x=tg.real("B T 8", -1, 1), arguments=arguments, budget=budget, name="stack",
        checkpoint=switch_on,
    )  # fmt: skip


def hungry(budget: tg.Budget, *size: int) -> tg.Model:
    """Declare the layer that takes a lot."""
    return tg.Model(lambda: Hungry(*size), x=tg.real("B 4", -1, 1), budget=budget, name="hungry")
