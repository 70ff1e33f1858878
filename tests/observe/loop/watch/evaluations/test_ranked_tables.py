"""What is seen of rankings: whether what is said counts each sample itself."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations.ranked_tables import _find, _Value


def by_argsort(features: torch.Tensor, kind: torch.Tensor, *, own: bool) -> torch.Tensor:
    """Return the order of all others, or of all."""
    likeness = features @ features.T
    likeness = likeness if own else likeness.fill_diagonal_(-torch.inf)
    return likeness.argsort(dim=1, descending=True)[:, : len(kind) - (not own)]


def by_topk(features: torch.Tensor, kind: torch.Tensor, *, own: bool) -> torch.Tensor:
    """Return the nearest few: one more is asked for where the first is left out."""
    order = (features @ features.T).topk(5 + (not own), dim=1).indices
    return order if own else order[:, 1:]


def by_distance(features: torch.Tensor, kind: torch.Tensor, *, own: bool) -> torch.Tensor:
    """Return the order of distances."""
    order = torch.cdist(features, features).sort(dim=1)[1]
    return order if own else order[:, 1:]


def average_precision(features: torch.Tensor, kind: torch.Tensor, rank: Any, own: bool) -> float:
    """Return the mean average precision."""
    found = (kind[rank(features, kind, own=own)] == kind[:, None]).float()
    places = torch.arange(1, found.shape[1] + 1)
    each = (found.cumsum(1) / places * found).sum(1) / found.sum(1).clamp(min=1)
    return float(each.mean())


def precision(features: torch.Tensor, kind: torch.Tensor, rank: Any, own: bool) -> float:
    """Return the precision at 5."""
    found = kind[rank(features, kind, own=own)[:, :5]] == kind[:, None]
    return float(found.float().mean())


def found(metric: Any, rank: Any, own: bool) -> list[Probe]:
    """Train a little and say a metric after each epoch; return what was found."""
    torch.manual_seed(0)
    kind = torch.arange(12).repeat(6)
    samples = F.one_hot(kind, 12) + torch.randn(72, 12)
    model = nn.Linear(12, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            for _ in range(2):
                loss = model(samples).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                value = metric(F.normalize(model(samples), dim=1), kind, rank, own)
            print(f"val retrieval: {value:.5f}")
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "found itself"]


RANKED = [
    (average_precision, by_argsort),
    (average_precision, by_distance),
    (precision, by_topk),
    (precision, by_argsort),
]


@pytest.mark.parametrize(("metric", "rank"), RANKED)
def test_a_metric_that_counts_the_sample_itself_is_found(metric: Any, rank: Any) -> None:
    """By what was said, and what it would be without."""
    (probe,) = found(metric, rank, True)
    assert probe.step == 3
    assert probe.measured > probe.reference > 0
    name = "mean average precision" if metric is average_precision else "precision at 5"
    assert probe.label == f"val retrieval\n{name}"


@pytest.mark.parametrize(("metric", "rank"), RANKED)
def test_a_metric_of_the_others_is_left_alone(metric: Any, rank: Any) -> None:
    """The first rank is cut off, or never there."""
    assert found(metric, rank, False) == []


def test_what_may_be_right_is_not_found() -> None:
    """A number that is one metric with the samples themselves, and another one without them."""
    values = [_Value("precision at 5", 0.6, 0.5), _Value("hits at 3", 0.7, 0.6)]
    assert _find(values, 0.6, 1e-4) is None
    assert _find(values[:1], 0.6, 1e-4) == ("precision at 5", 0.5)
    assert _find(values[:1], 60.0, 1e-2) == ("precision at 5", 50.0)
