"""The networks whose memory is predicted, with and without activation checkpointing."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fixtures.healthy.model.guard_sashimi_checkpointed import Sashimi


class Checkpointed(nn.Module):
    """A network that computes the activations of its parts again, where told to."""

    again = False

    def part(self, module: nn.Module, x: Tensor) -> Tensor:
        """Call one part."""
        made: Tensor = checkpoint(module, x, use_reentrant=False) if self.again else module(x)
        return made


class Block(nn.Module):
    """A transformer block, pre-norm, with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend and feed forward, both as residuals."""
        batch, length, width = x.shape
        mixed = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.after(x))


class Transformer(Checkpointed):
    """A decoder: embedding, blocks, head."""

    def __init__(self, width: int = 192, layers: int = 6, heads: int = 6, words: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, [B, T, words]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.part(block, x)
        made: Tensor = self.head(self.norm(x))
        return made


def doubled(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU(),
    )  # fmt: skip


class UNet(Checkpointed):
    """A U-Net of three levels with skip connections."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([doubled(3, width), doubled(width, 2 * width)])
        self.middle = doubled(2 * width, 4 * width)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in (2 * width, width)
        )
        self.merge = nn.ModuleList([doubled(4 * width, 2 * width), doubled(2 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the same size."""
        skips = []
        for level in self.down:
            skips.append(self.part(level, x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.part(self.middle, x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = self.part(merge, torch.cat([up(x), skips.pop()], 1))
        made: Tensor = self.out(x)
        return made


class ViT(Checkpointed):
    """A vision transformer over patches of eight by eight."""

    def __init__(self, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        layer = partial(nn.TransformerEncoderLayer, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(layer(width, 4, 4 * width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of ten classes."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = self.part(block, x)
        made: Tensor = self.head(x.mean(1))
        return made


class SaShiMi(Sashimi):
    """A U-Net of state spaces over samples, of the size that the others have."""

    def __init__(self) -> None:
        super().__init__(width=32, pools=(4, 4), layers=2)

    @property
    def again(self) -> bool:
        """Whether activations are computed again."""
        return bool(self.recompute)

    @again.setter
    def again(self, on: bool) -> None:
        """Switch it on or off."""
        self.recompute = on
