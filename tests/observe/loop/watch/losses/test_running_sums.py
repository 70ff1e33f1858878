"""Losses with a running sum over samples, and the order that these are in."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses import running_sums
from trainguard.observe.loop.watch.losses.running_sums import _keeps_rows

Cox = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cox(risk: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """Return minus the log-likelihood of the events."""
    return -((risk - risk.logcumsumexp(0)) * event).mean()


def by_hand(risk: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """Return the same, with a sum of exponentials."""
    return -((risk - (risk.exp().cumsum(0) + 1e-8).log()) * event).mean()


def sorted_inside(risk: torch.Tensor, event: torch.Tensor) -> torch.Tensor:
    """Return the same of scores that are put in an order first."""
    return cox(risk[torch.randperm(len(risk))], event)


def looks(order: str, columns: int = 1, loss: Cox = cox) -> list[tuple[float, float]]:
    """Make four steps with times in some order, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), *([nn.Flatten(0)] if columns == 1 else []))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    all_times, events = torch.rand(64), torch.ones(24) if columns == 1 else torch.ones(24, 1)
    with Recorder("x") as recorder:
        for _ in range(4):
            chosen, ages = torch.randperm(64)[:24], torch.rand(24)
            if order == "places":
                chosen = chosen[all_times[chosen].argsort()]
            else:
                times = all_times[chosen]
                times = times.sort().values if order == "times" else times
                del chosen
            value = loss(model(torch.randn(24, 3)), events)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            assert len(ages) == 24
            assert order == "places" or len(times)
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "running sum"]
    return [(probe.measured, probe.reference) for probe in found]


@SHAPES
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("loss", [cox, by_hand])
def test_samples_in_no_order_are_told(columns: int, loss: Cox) -> None:
    """Of scores (N,) and (N, 1), at the three of four steps that are looked at."""
    assert looks("none", columns, loss) == [(3, 3)]


@pytest.mark.parametrize("order", ["times", "places"])
def test_samples_in_an_order_are_left_alone(order: str) -> None:
    """Times that rise, and places at which all times do."""
    assert looks(order) == []


def test_scores_that_are_put_in_an_order_are_left_alone() -> None:
    """On their way to the sum."""
    assert looks("none", loss=sorted_inside) == []


def directions(loss: Callable, order: str = "none") -> list[tuple[str, float, float]]:
    """Make four steps with a loss of risks and times; return what is told of their direction."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    all_times = torch.rand(64)
    with Recorder("x") as recorder:
        for _ in range(4):
            rows, lengths = torch.randperm(64)[:24], torch.rand(24)
            if order == "lengths":
                lengths = lengths.sort().values
            elif order != "none":
                rows = rows[all_times[rows].argsort(descending=order == "falling")]
            value = loss(model(torch.randn(24, 3))[:, 0], all_times[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            assert len(lengths) == 24
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "early risk"]
    return [(probe.label, probe.measured, probe.reference) for probe in found]


def rising(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up from the shortest time."""
    risk = risk[times.argsort()]
    return -(risk - risk.logcumsumexp(0)).mean()


def falling(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up from the longest time."""
    return rising(risk, -times)


def turned(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up from the longest time, of what is sorted from the shortest."""
    risk = risk[times.argsort()]
    return -(risk - (risk.flip(0).exp().cumsum(0) + 1e-8).log().flip(0)).mean()


def turned_once(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up from the shortest time, of what is sorted from the longest."""
    risk = risk.index_select(0, times.argsort(descending=True))
    return -(risk - risk.flip(0).logcumsumexp(0).flip(0)).mean()


def unsorted(risk: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Sum up as samples come."""
    return -(risk - risk.logcumsumexp(0)).mean()


def chosen(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up some of the samples."""
    risk = risk[times.argsort()[:12]]
    return -(risk - risk.logcumsumexp(0)).mean()


def of_others(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up what no module has made."""
    risk = (risk * times)[times.argsort()].tanh()
    return -(risk - risk.logcumsumexp(0)).mean()


@SHAPES
@pytest.mark.parametrize("loss", [rising, turned_once])
def test_sums_from_the_shortest_time(loss: Callable) -> None:
    """However the scores were put in their order."""
    assert directions(loss) == [("all_times", 3, 3)]


@SHAPES
def test_sums_over_a_batch_that_is_sorted() -> None:
    """By the times that it has, in its own order."""
    assert directions(unsorted, "rising") == [("all_times", 3, 3)]
    assert directions(unsorted, "falling") == []


def beside_others(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Hold sums against what no module has made."""
    order = times.argsort()
    return -((risk * times)[order].tanh() - risk[order].logcumsumexp(0)).mean()


@SHAPES
def test_a_letter_is_a_time_beside_such_a_sum() -> None:
    """As `t` is in formulas: there is nothing else in whose order risks are summed up."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    t_train = torch.rand(64)
    with Recorder("x") as recorder:
        for _ in range(4):
            rows = torch.randperm(64)[:24]
            value = rising(model(torch.randn(24, 3))[:, 0], t_train[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "early risk"]
    assert [(probe.label, probe.measured, probe.reference) for probe in found] == [
        ("t_train", 3, 3)
    ]


def of_events(risk: torch.Tensor, times: torch.Tensor, sign: int = 1) -> torch.Tensor:
    """Count some of the samples alone."""
    order = (sign * times).argsort()
    risk, events = risk[order], (torch.arange(24) % 3 > 0).float()
    return -((risk - risk.logcumsumexp(0)) * events).sum() / events.sum()


def of_all(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Count all of them, as a ranking by something does."""
    risk = risk[times.argsort()]
    return -((risk - risk.logcumsumexp(0)) * torch.ones(24)).mean()


def late_events(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Sum up from what is longest."""
    return of_events(risk, times, -1)


@SHAPES
@pytest.mark.parametrize(
    ("loss", "least", "known"),
    [
        (of_events, 0.01, [("ttr", 3, 3)]),
        (of_events, -0.5, []),
        (late_events, 0.01, []),
        (of_all, 0.01, []),
    ],
)
def test_a_time_without_a_name(loss: Callable, least: float, known: list) -> None:
    """It is what scores are sorted by, where those with an event alone are counted."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ttr, other = torch.rand(64) + least, torch.rand(64) + 0.01
    with Recorder("x") as recorder:
        for _ in range(4):
            rows = torch.randperm(64)[:24]
            value = loss(model(torch.randn(24, 3))[:, 0], ttr[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert len(other) == len(ttr)
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "early risk"]
    assert [(probe.label, probe.measured, probe.reference) for probe in found] == known


def test_what_is_no_time() -> None:
    """Lengths may rise in a batch for the sake of its padding."""
    assert directions(unsorted, "lengths") == []


def test_columns_and_rows() -> None:
    """A column keeps the samples, and a row is one of them."""
    scores = torch.randn(8, 8, requires_grad=True)
    assert _keeps_rows(scores[:, 0].grad_fn)
    assert not _keeps_rows(scores[0].grad_fn)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_orders_on_an_accelerator_are_not_read(device: str, monkeypatch) -> None:
    """Times are read on the host."""
    monkeypatch.setattr(running_sums, "pass_of", lambda node: hasattr(node, "variable") or None)
    risk = torch.zeros(8, device=device, requires_grad=True)
    places = running_sums._places_below(risk[torch.arange(8, device=device)].grad_fn, 8)
    assert (places is None) == (device == "meta")


@pytest.mark.parametrize("loss", [falling, turned, unsorted, chosen, of_others, beside_others])
def test_other_sums_are_left_alone(loss: Callable) -> None:
    """Those from the longest time, and those whose samples are not known."""
    assert directions(loss) == []
