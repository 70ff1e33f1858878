"""Copies of samples, and the tables that what is made of them is reduced in."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.separated_copies import _order_of

Loss = Callable[[torch.Tensor], torch.Tensor]
N, K = 6, 4
ALL_IN_TURN = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        (ALL_IN_TURN, (3, True)),
        ([0, 0, 1, 1, 2, 2], (3, False)),
        ([0, 1, 2, 3], None),
        ([0, 0, 0, 0], None),  # of one sample
        ([0, 1, 2, 0, 2, 1], None),
        ([0, 0, 1, 2, 1, 2], None),
        ([0, 1, 0, 1, 0], None),
        ([0, 0, 1, 1, 0, 0], None),  # a sample that comes again
    ],
)
def test_the_order_of_copies(rows: list[int], order: tuple[int, bool] | None) -> None:
    """All samples and all again, or all copies of one and then of the next."""
    assert _order_of(torch.tensor(rows, dtype=torch.float32)[:, None]) == order


def found(repeat: Loss, loss: Loss, samples: int = N) -> list[tuple[float, float, str]]:
    """Train on copies of samples, and return what is told of their tables."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(samples, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(9):
            optimizer.zero_grad()
            loss(net(repeat(x))[:, 0]).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "separated copies"]
    return [(p.measured, p.reference, p.label) for p in probes]


def tile(x: torch.Tensor) -> torch.Tensor:
    """Return all samples in turn, and again."""
    return x.repeat(K, 1)


def interleave(x: torch.Tensor) -> torch.Tensor:
    """Return the copies of each sample one after the other."""
    return x.repeat_interleave(K, 0)


TILED, INTERLEAVED = f"{N} {K} repeat", f"{N} {K} repeat_interleave"


@pytest.mark.parametrize(
    ("repeat", "loss", "label"),
    [
        (tile, lambda v: v.view(N, K).logsumexp(1).mean(), TILED),
        (tile, lambda v: v.view(N, K).mean(-1).square().sum(), TILED),
        (tile, lambda v: v.view(N, K).max(1).values.sum(), TILED),
        (tile, lambda v: v.view(N, K).amin(1).sum(), TILED),
        (tile, lambda v: (v.view(N, K).softmax(1) ** 2).sum(), TILED),
        (interleave, lambda v: v.view(K, N).logsumexp(0).mean(), INTERLEAVED),
        (tile, lambda v: v.view(K, N).logsumexp(0).mean(), ""),
        (interleave, lambda v: v.view(N, K).logsumexp(1).mean(), ""),
        (tile, lambda v: v.view(N, K).logsumexp(0).mean(), ""),
        (tile, lambda v: v.view(K, N).mean(1).square().sum(), ""),  # of each copy, over all
        (tile, lambda v: v.view(3, 8).logsumexp(1).mean(), ""),  # of another shape
        (tile, lambda v: v.square().mean(), ""),
        (lambda x: x, lambda v: v.view(2, 3).logsumexp(1).mean(), ""),
    ],
)
def test_tables_of_copies(repeat: Loss, loss: Loss, label: str) -> None:
    """Wrong is the other order alone, reduced along what would be the copies in it."""
    assert found(repeat, loss) == ([(3.0, 3.0, label)] if label else [])


def test_copies_in_a_sparse_matrix_are_left_alone() -> None:
    """They have no rows to be compared, and the watcher goes on."""
    assert found(lambda x: tile(x).to_sparse(), lambda v: v.view(N, K).logsumexp(1).mean()) == []


def test_as_many_copies_as_samples() -> None:
    """Nothing tells which order is meant."""
    assert found(tile, lambda v: v.view(K, K).logsumexp(1).mean(), samples=K) == []
