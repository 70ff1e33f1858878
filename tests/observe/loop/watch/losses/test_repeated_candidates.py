"""Partners that come several times in a batch, and are pushed away there."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.repeated_candidates import _count_repeated

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
BATCH = 32


def keep(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Leave a table of scores as it is."""
    return scores


def hide(scores: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Leave out the columns of the same item."""
    same = (items[:, None] == items[None, :]) & ~torch.eye(len(items), dtype=torch.bool)
    return scores.masked_fill(same, float("-inf"))


def looks(items: int, mask: Mask = keep, shift: int = 0) -> list[tuple[float, float]]:
    """Train two tables of vectors for ten steps; return what was found of how many rows."""
    torch.manual_seed(0)
    users, shown = nn.Embedding(64, 8), nn.Embedding(items, 8)
    optimizer = torch.optim.SGD([*users.parameters(), *shown.parameters()], lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(10):
            rows = torch.randint(64, (BATCH,))
            liked = (rows * 7 + torch.randint(2, (BATCH,))) % items
            scores = mask(F.normalize(users(rows)) @ F.normalize(shown(liked)).T / 0.1, liked)
            loss = F.cross_entropy(scores, (torch.arange(BATCH) + shift) % BATCH)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "repeated candidates"]
    return [(probe.measured, probe.reference) for probe in found]


def test_few_items_come_again() -> None:
    """Of twenty items most come twice in a batch of 32; eight losses are looked at."""
    ((repeated, rows),) = looks(20)
    assert rows == 8 * BATCH
    assert repeated > 0.7 * rows


def test_many_items_hardly_do() -> None:
    """The table of users makes some of them come again."""
    ((repeated, rows),) = looks(128)
    assert repeated < 0.5 * rows


def test_columns_that_are_masked() -> None:
    """What is left out of the row of its partner is pushed away from others alone."""
    assert looks(20, hide) == []


def test_targets_beside_the_diagonal() -> None:
    """They belong to something else than the pairs of a batch."""
    assert looks(20, shift=1) == []


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (torch.zeros(16, 16), None),  # nothing is told apart
        (torch.randn(16, 2).repeat_interleave(8, 1), 16),
        (torch.randn(16, 3)[:, [*[0] * 10, *[1] * 3, *[2] * 3]], None),  # most are alike
        (torch.full((16, 16), float("-inf")), None),
        (torch.randn(16, 16), 0),
    ],
)
def test_columns_that_are_alike(scores: torch.Tensor, expected: int | None) -> None:
    """Half of them may be; more are those of a model that has collapsed."""
    assert _count_repeated(scores) == expected
