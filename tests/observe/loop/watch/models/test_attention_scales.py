"""By what scores of attention are multiplied before their softmax."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROOT = 12**0.5
BIAS = nn.Parameter(torch.zeros(6, 6))


class Plain(nn.Module):
    """Layers of queries and keys, whose scores others make."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.learned = nn.Parameter(torch.tensor(ROOT))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys."""
        return self.query(x), self.key(x)


class Speaking(Plain):
    """One in which a line speaks of a root: width ** -0.5."""

    root = 16**0.5


def attend(weigh: Callable, width: int = 12, kind: type[Plain] = Plain) -> tuple[list, bool]:
    """Train with weights of attention; return what is told, and whether scales were seen."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        layers = kind(width)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 6, width)
            weigh(layers, *layers(x), x).square().sum().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe)]
    found = [(p.probe, p.measured, p.label) for p in probes if p.probe.startswith("attention sc")]
    return found, "attention scale" in recorder.trace.conditions["looked"]


def soft(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return what the softmax of scores reads."""
    return scores.softmax(-1) @ x


MULTIPLIED = {
    "after": lambda _, q, k, x: soft(q @ k.mT * ROOT, x),
    "before": lambda _, q, k, x: soft((q * ROOT) @ k.mT, x),
    "on both sides": lambda _, q, k, x: soft((q * 12**0.25) @ (k * 12**0.25).mT, x),
    "divided": lambda _, q, k, x: soft(q @ k.mT / 12**-0.5, x),
    "a tensor": lambda _, q, k, x: soft(q @ k.mT * torch.tensor(12.0).sqrt(), x),
    "einsum": lambda _, q, k, x: soft(torch.einsum("nid,njd->nij", q, k) * ROOT, x),
    "a bias": lambda _, q, k, x: soft(q @ k.mT * ROOT + BIAS, x),
    "a mask": lambda _, q, k, x: soft(torch.baddbmm(torch.zeros(4, 6, 6), q * ROOT, k.mT), x),
    "fused": lambda _, q, k, x: F.scaled_dot_product_attention(q, k, x, scale=ROOT),
    "fused, before": lambda _, q, k, x: F.scaled_dot_product_attention(q * 12, k, x),
}
ALLOWED = {
    "divided": lambda _, q, k, x: soft(q @ k.mT / ROOT, x),
    "nothing": lambda _, q, k, x: soft(q @ k.mT, x),
    "twice": lambda _, q, k, x: soft(q @ k.mT / 12, x),
    "cancelled": lambda _, q, k, x: soft(q / 12 @ k.mT * ROOT, x),
    "fused": lambda _, q, k, x: F.scaled_dot_product_attention(q, k, x),
}
UNKNOWN = {
    "learned": lambda m, q, k, x: soft(q @ k.mT * m.learned, x),
    "cosines": lambda _, q, k, x: soft(
        F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * ROOT, x
    ),
    "distances": lambda _, q, k, x: soft((q @ k.mT - k.square().sum(-1).unsqueeze(-2)) * ROOT, x),
    "one side learns": lambda _, q, k, x: soft(q @ x.mT * ROOT, x),
}


@pytest.mark.parametrize("way", MULTIPLIED)
def test_scores_that_are_multiplied(way: str) -> None:
    """It is the product of all constants that counts."""
    assert attend(MULTIPLIED[way]) == ([("attention scale", 3, "12")], True)


@pytest.mark.parametrize("way", ALLOWED)
def test_scores_of_another_scale(way: str) -> None:
    """They are seen, and nothing is told of them."""
    assert attend(ALLOWED[way]) == ([], True)


@pytest.mark.parametrize("way", UNKNOWN)
def test_scores_of_no_known_scale(way: str) -> None:
    """Nothing is judged of them."""
    assert attend(UNKNOWN[way]) == ([], False)


def test_roots_that_are_whole_numbers() -> None:
    """Somebody may have chosen four by itself, unless modules speak of a root."""
    four = lambda _, q, k, x: soft(q @ k.mT * 4, x)  # noqa: E731 as the others are
    assert attend(four, 16)[0] == [("attention scale, perhaps", 3, "16")]
    assert attend(four, 16, Speaking)[0] == [("attention scale", 3, "16")]
    two = lambda _, q, k, x: soft(q @ k.mT * 2, x)  # noqa: E731
    assert attend(two, 4) == ([], True)
