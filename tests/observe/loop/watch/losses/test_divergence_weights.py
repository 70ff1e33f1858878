"""What a divergence of codes weighs beside a distance of features."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

_FEATURES, _ROWS = 20, 8


def looks(
    distance: str, over: str, weight: float = 1.0, warmup: int = 0, codes: int = 3
) -> list[tuple[float, float, str]]:
    """Make steps of a coder with some reductions, and return what was seen."""
    torch.manual_seed(0)
    encode, decode = nn.Linear(_FEATURES, 2 * codes), nn.Linear(codes, _FEATURES)
    optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=0.05)
    with Recorder("x") as recorder:
        for step in range(70):
            rows = torch.randn(_ROWS, _FEATURES)
            mean, spread = encode(rows).chunk(2, 1)
            made = decode(mean + torch.randn_like(mean) * (0.5 * spread).exp())
            made = made - made.mean(-1, keepdim=True) if over == "beside" else made
            fit = F.mse_loss(made, rows, reduction=distance)
            fit = fit if distance == "mean" else fit / _ROWS
            each = -0.5 * (1 + spread - mean.pow(2) - spread.exp())
            divergence = {
                "all": lambda each: each.sum(),
                "beside": lambda each: each.sum(1).mean(),
                "codes": lambda each: each.sum(1).mean(),
                "none": lambda each: each.mean(),
                "samples": lambda each: each.mean(-1).mean(),
                "sums": lambda each: each.mean(0).sum(),
                "weighed": lambda each: each.mean(0).sum() / 3,
            }["weighed" if over == "late" and step > 5 else "none" if over == "late" else over]
            optimizer.zero_grad()
            (fit + weight * min(1.0, (step + 1) / max(1, warmup)) * divergence(each)).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "divergence weight"]
    return [(probe.measured, probe.step, probe.label) for probe in found]


@pytest.mark.parametrize(
    ("over", "times"),
    [("codes", _FEATURES), ("all", _FEATURES * _ROWS)],
)
def test_means_beside_sums_are_told(over: str, times: int) -> None:
    """In the four of these steps that are looked at; the codes have been given up by then."""
    assert looks("mean", over) == [(times, 4, "collapsed")]


@pytest.mark.parametrize(
    ("distance", "weight"), [("sum", 1.0), ("mean", 1 / _FEATURES), ("mean", 0.3)]
)
def test_other_weights_are_left_alone(distance: str, weight: float) -> None:
    """Sums beside sums, and what somebody has chosen."""
    assert looks(distance, "codes", weight) == []


def test_a_warmup_is_no_choice() -> None:
    """Once it has ended the divergence weighs what it would have weighed without it."""
    assert looks("mean", "codes", warmup=5) == [(_FEATURES, 3, "collapsed")]
    assert looks("mean", "codes", 0.3, warmup=5) == []


@pytest.mark.parametrize("over", ["none", "samples"])
def test_a_mean_over_codes_beside_a_sum_is_told(over: str) -> None:
    """It weighs three times less than what is summed."""
    assert looks("sum", over) == [(3, 4, "averaged")]
    assert looks("sum", over, warmup=5) == [(3, 4, "averaged")]


@pytest.mark.parametrize(
    ("distance", "over", "weight"),
    [
        ("mean", "none", 0.01),
        ("mean", "none", 1 / _FEATURES),
        ("sum", "beside", 1 / 3),
        ("sum", "late", 1.0),
        ("sum", "sums", 1 / 3),
        ("sum", "none", 3.0),
        ("sum", "none", 0.3),
        ("sum", "codes", 0.1),
    ],
)
def test_means_that_are_left_alone(distance: str, over: str, weight: float) -> None:
    """Beside a mean, over samples alone, and where a weight makes up for them."""
    assert looks(distance, over, weight) == []


def test_half_of_a_divergence_is_a_choice() -> None:
    """A mean over two codes weighs as much as many a weight."""
    assert looks("sum", "none", codes=2) == []
