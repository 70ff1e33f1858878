"""How often classes come, and what weights a loss gives them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.fit import BaselineFit
from trainguard.observe.loop.recorder import Recorder

RARE = torch.tensor([0.5, 0.2, 0.1, 0.05])


def fit_of(weight: torch.Tensor) -> BaselineFit:
    """Train with a pos_weight on labels of four tags; return what was added up."""
    torch.manual_seed(0)
    labels = (torch.rand(40, 64, 4) < RARE).float()
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for wanted in labels:
            optimizer.zero_grad()
            scores = model(torch.randn(64, 6))
            F.binary_cross_entropy_with_logits(scores, wanted, pos_weight=weight).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    (fit,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    return fit


def test_weights_of_several_tags() -> None:
    """Each has its own, and how often it comes for each time that it does not."""
    weight = (RARE / (1 - RARE)).sqrt()
    fit = fit_of(weight)
    assert fit.weights == pytest.approx(weight.tolist())
    odds = [count / fit.counts[0] for count in fit.counts]
    assert odds == pytest.approx((RARE / (1 - RARE)).tolist(), rel=0.15)


def test_a_weight_of_all_tags() -> None:
    """One for all is that of positives against negatives."""
    fit = fit_of(torch.tensor(3.0))
    assert fit.weights == (1.0, 3.0)
    assert fit.counts[1] / sum(fit.counts) == pytest.approx(float(RARE.mean()), rel=0.05)


def test_a_weight_of_another_shape() -> None:
    """What is broadcast along other axes says nothing of classes."""
    assert fit_of(torch.ones(64, 4)).weights == ()
