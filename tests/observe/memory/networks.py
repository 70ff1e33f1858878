"""Small networks whose memory the tests follow, and how a real run of them is measured."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from trainguard.observe.memory.allocation_log import AllocationLog
from trainguard.observe.memory.training import Training, train


class Block(nn.Module):
    """A transformer block, pre-norm, with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend and feed forward, both as residuals."""
        batch, length, width = x.shape
        mixed = self.mix(self.before(x)).view(batch, length, 3, 2, width // 2)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.after(x))


class Transformer(nn.Module):
    """A character transformer, with activation checkpointing where asked for."""

    def __init__(self, width: int = 64, layers: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 96)
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next character, [B, T, 96]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


class Convolutions(nn.Module):
    """Two convolutions with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same size."""
        return self.second(F.silu(self.norm(self.first(images))))


def tokens() -> Tensor:
    """Return a batch of characters."""
    return torch.zeros(4, 32, dtype=torch.long)


def next_character(module: nn.Module, batch: Tensor) -> tuple[Tensor, Any]:
    """Return the loss of a transformer, and its logits, which a loop still holds."""
    logits = module(batch)
    return F.cross_entropy(logits.flatten(0, 1), batch.flatten()), logits


def of_transformer(**options: Any) -> Training:
    """Return the training of a transformer with AdamW."""
    given: dict[str, Any] = {
        "build": Transformer, "feed": tokens, "loss": next_character,
        "optimizer": torch.optim.AdamW, "foreach": False,
    }  # fmt: skip
    return Training(**{**given, **options})


def real_peak(training: Callable[[], Training]) -> int:
    """Return the bytes held at the highest moment of real steps, by torch's own profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        train(training(), Unwatched())
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


class Unwatched(AllocationLog):
    """A ledger that is never entered, for runs that something else measures."""

    def enter_all(self, tensors: Any, category: str) -> None:
        """Follow nothing."""
