"""Losses with a running sum over samples, and the order that these are in."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Cox = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cox(risk: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """Return minus the log-likelihood of the events."""
    return -((risk - risk.logcumsumexp(0)) * event).mean()


def by_hand(risk: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """Return the same, with a sum of exponentials."""
    return -((risk - (risk.exp().cumsum(0) + 1e-8).log()) * event).mean()


def looks(way: str, loss: Cox = cox) -> list[tuple[float, float]]:
    """Make four steps with samples in some order, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            _loss_of(way, model, loss).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "running sum"]
    return [(probe.measured, probe.reference) for probe in found]


def _loss_of(way: str, model: nn.Module, loss: Cox) -> torch.Tensor:
    """Return a loss of samples in some order; whoever goes backward sees none of its variables."""
    return WAYS[way](model, torch.randn(24, 3), torch.rand(24), torch.ones(24), loss)


WAYS = {"inside": lambda m, x, t, e, loss: loss(m(x)[t.argsort()], e)}


def steps(sort: bool, keep: bool, columns: int = 1, loss: Cox = cox) -> list[tuple[float, float]]:
    """Make four steps with times that are sorted, or kept beside the order, or neither."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), *([nn.Flatten(0)] if columns == 1 else []))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    all_times = torch.rand(64)
    with Recorder("x") as recorder:
        for _ in range(4):
            chosen = torch.randperm(64)[:24]
            rows, events = torch.randn(24, 3), torch.ones(24)
            if keep:
                chosen = chosen[all_times[chosen].argsort()]
            else:
                times = all_times[chosen]
                times = times.sort().values if sort else times
                del chosen
            scores = model(rows)
            value = loss(scores, events if columns == 1 else events[:, None])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            assert keep or len(times)
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "running sum"]
    return [(probe.measured, probe.reference) for probe in found]


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("loss", [cox, by_hand])
def test_samples_in_no_order_are_told(columns: int, loss: Cox) -> None:
    """Of scores (N,) and (N, 1), at the three of four steps that are looked at."""
    assert steps(sort=False, keep=False, columns=columns, loss=loss) == [(3, 3)]


@pytest.mark.parametrize(("sort", "keep"), [(True, False), (False, True)])
def test_samples_in_an_order_are_left_alone(sort: bool, keep: bool) -> None:
    """Times that rise, and places at which all times do."""
    assert steps(sort, keep) == []


def test_scores_that_are_put_in_an_order_are_left_alone() -> None:
    """On their way to the loss."""
    assert looks("inside") == []
