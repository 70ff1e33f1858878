"""Batches that are mixed of two samples each, and the labels that they are learned with."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.unmixed_rows import unmix


def mix(way: str, rows: torch.Tensor, order: torch.Tensor, share: float) -> torch.Tensor:
    """Return what is mixed of rows and others: in all numbers, or in some of them."""
    if way == "pasted":
        mixed = rows.clone()
        mixed[:, round(share * rows.shape[1]) :] = rows[order][:, round(share * rows.shape[1]) :]
        return mixed
    return share * rows + (1 - share) * rows[order]


def looks(
    way: str = "blended", labels: str = "same", weight: str = "share", share: float = 0.75
) -> list[tuple[float, float, str]]:
    """Make nine steps with mixtures, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(9):
            rows, kinds = torch.randn(24, 12), torch.randint(5, (24,))
            order = torch.randperm(24)
            other = {"same": order, "another": torch.randperm(24)}[labels]
            scores = model(mix(way, rows, order, share))
            own = {"share": share, "rest": 1 - share, "near": share + 0.03}[weight]
            first, second = F.cross_entropy(scores, kinds), F.cross_entropy(scores, kinds[other])
            optimizer.zero_grad()
            (own * first + (1 - own) * second).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "mixed"]
    seen = "mixed" in str(recorder.trace.conditions["looked"])
    assert seen or abs(2 * share - 1) < 0.1
    return [(probe.measured, probe.reference, probe.label) for probe in found]


@pytest.mark.parametrize("way", ["blended", "pasted"])
def test_weights_of_each_other_are_told(way: str) -> None:
    """At all steps but the first, at which nobody knew of two labels."""
    assert looks(way, weight="rest") == [(8, 8, "weights of each other")]


@pytest.mark.parametrize("way", ["blended", "pasted"])
def test_labels_of_other_samples_are_told(way: str) -> None:
    """As of a second permutation."""
    assert looks(way, labels="another") == [(8, 8, "labels of other samples")]


@pytest.mark.parametrize("way", ["blended", "pasted"])
@pytest.mark.parametrize("weight", ["share", "near"])
def test_mixtures_with_their_labels_are_left_alone(way: str, weight: str) -> None:
    """Weights may be a little off, as of a box that is cut at the border."""
    assert looks(way, weight=weight) == []


def blend_at_once(
    data: torch.Tensor, at: torch.Tensor, order: torch.Tensor, share: float
) -> torch.Tensor:
    """Return a mixture of rows that nobody keeps."""
    return share * data[at] + (1 - share) * data[at][order]


@pytest.mark.parametrize("count", [60, 4000])
@pytest.mark.parametrize("same", [True, False])
def test_what_is_mixed_of_is_found_among_all_data(count: int, same: bool) -> None:
    """Where the batch itself is gone, and another set of the same width lies about."""
    torch.manual_seed(0)
    others = torch.randn(100, 12)
    data, kinds = torch.randn(count, 3, 4), torch.randint(5, (count,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(9):
            at, order, another = torch.randperm(count)[:24], *map(torch.randperm, (24, 24))
            scores = model(blend_at_once(data, at, order, 0.7))
            second = kinds[at][order if same else another]
            optimizer.zero_grad()
            loss = 0.7 * F.cross_entropy(scores, kinds[at]) + 0.3 * F.cross_entropy(scores, second)
            loss.backward()
            optimizer.step()
    assert len(others) == 100
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert "mixed" in str(recorder.trace.conditions["looked"])
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "mixed"]
    told = [(probe.measured, probe.reference, probe.label) for probe in found]
    assert told == ([] if same else [(8, 8, "labels of other samples")])


def test_what_is_of_no_two_samples_is_not_found() -> None:
    """As where noise was added, or a sample comes twice, or its partner is in no batch."""
    drawn = np.random.default_rng(0)
    data = drawn.standard_normal((50, 6))
    first, rest = np.arange(8), np.array([3, 2, 1, 0, 7, 6, 5, 4])
    mixed = 0.8 * data[first] + 0.2 * data[rest]
    assert unmix(mixed, data, 0.8) == rest.tolist()
    assert unmix(mixed, data, 0.7) is None
    assert unmix(mixed + 0.05 * drawn.standard_normal(mixed.shape), data, 0.8) is None
    assert unmix(mixed + 0.003 * drawn.standard_normal(mixed.shape), data, 0.8) is None
    assert unmix(mixed[[0, 0, 3]], data, 0.8) is None
    assert unmix(mixed[:3], data, 0.8) is None


def test_halves_say_nothing() -> None:
    """Of one half it is not known which is which."""
    assert looks(weight="rest", share=0.5) == []


def test_labels_of_another_number_of_samples_say_nothing() -> None:
    """As where two heads learn from parts of a batch."""
    model = nn.Linear(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            rows, order = torch.randn(24, 12), torch.randperm(24)
            scores = model(mix("blended", rows, order, 0.75))
            first = F.cross_entropy(scores[:4], torch.randint(5, (4,)))
            optimizer.zero_grad()
            (0.75 * first + 0.25 * F.cross_entropy(scores, torch.randint(5, (24,)))).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert "mixed" not in str(recorder.trace.conditions["looked"])
