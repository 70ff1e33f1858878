"""What noise is multiplied by, and what a divergence takes it for."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder

QUESTION = "scale of noise"


def ask(scale_of, divergence_of) -> WhatIf | None:
    """Record four steps of an autoencoder, and return the last answer."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        encoder, decoder = nn.Linear(6, 6), nn.Linear(3, 6)
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
        for batch in torch.randn(4, 32, 6):
            mean, raw = encoder(batch).chunk(2, 1)
            made = decoder(mean + scale_of(raw) * torch.randn_like(mean))
            loss = (made - batch).pow(2).sum(1) + 0.2 * divergence_of(mean, raw).sum(1)
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    answers = [e for e in asked if e.question == QUESTION and e.outcome == "answered"]
    return answers[-1] if answers else None


def of_log_variance(mean, raw):
    """Return the divergence from N(0, 1) of N(mean, exp(raw))."""
    return 0.5 * (raw.exp() + mean.pow(2) - 1 - raw)


def of_log_deviation(mean, raw):
    """Return the divergence from N(1, 4) of N(mean, exp(2 raw))."""
    return 0.5 * ((2 * raw).exp() + (mean - 1).pow(2)) / 4 - raw


def of_variance(mean, raw):
    """Return the divergence from N(0, 1) of N(mean, softplus(raw))."""
    variance = F.softplus(raw)
    return 0.5 * (variance + mean.pow(2) - 1 - variance.log())


def of_square(mean, raw):
    """Take the square of a logarithm for the variance."""
    return 0.5 * (mean.pow(2) + raw**2 - torch.log(raw**2) - 1)


@pytest.mark.parametrize(
    ("scale_of", "divergence_of", "claim"),
    [
        (torch.exp, of_log_variance, 0.0),
        (F.softplus, of_log_variance, 0.0),
        (lambda raw: (0.5 * raw).exp(), of_log_deviation, 1.0),
        (F.softplus, of_variance, 2.0),
        (lambda raw: (0.5 * raw).exp(), of_square, 3.0),
    ],
)
def test_scales_taken_for_something_else(scale_of, divergence_of, claim) -> None:
    """A divergence that takes the scale, or what it is made of, for something else is known."""
    answer = ask(scale_of, divergence_of)
    assert answer is not None
    assert (answer.measured, answer.reference, answer.numbers) == (1.0, 1.0, (claim,))
    assert answer.smallest.startswith(__file__)


@pytest.mark.parametrize(
    ("scale_of", "divergence_of"),
    [
        (lambda raw: (0.5 * raw).exp(), of_log_variance),
        (lambda raw: raw.exp().sqrt(), of_log_variance),
        (torch.exp, of_log_deviation),
        (lambda raw: F.softplus(raw).sqrt(), of_variance),
    ],
)
def test_scales_taken_for_what_they_are(scale_of, divergence_of) -> None:
    """A divergence that takes the scale for the deviation is all right."""
    answer = ask(scale_of, divergence_of)
    assert answer is not None
    assert (answer.measured, answer.reference) == (0.0, 1.0)


def test_what_is_no_divergence() -> None:
    """Another penalty of scales says nothing."""
    answer = ask(torch.exp, lambda mean, raw: mean.abs() + raw.pow(2))
    assert answer is None or answer.reference == 0
