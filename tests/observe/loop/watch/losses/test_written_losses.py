"""Losses that are written by hand are taken for the function that they are, where they go back."""
# ruff: noqa: PLW0108 each loss is to be computed where it is asked for

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainguard.events.fit import BaselineFit
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.written_losses import keep_outputs, read_loss

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y, CLASSES = 2 * X[:, :1] + 1, (X[:, 0] > 0).long()
NUMBERS, SCORES = nn.Linear(6, 1), nn.Linear(6, 2)


def told(module: nn.Module) -> torch.Tensor:
    """Return what a module returns, as a recording sees it."""
    output = module(X)
    keep_outputs(output)
    return output


def logarithms() -> torch.Tensor:
    """Return the logarithms of probabilities of two classes."""
    return told(SCORES).log_softmax(-1)


def twice() -> torch.Tensor:
    """Return a distance that is multiplied by itself."""
    apart = told(NUMBERS) - Y
    return (apart * apart).mean()


def written_over() -> torch.Tensor:
    """Return a distance from what was written over since the pass, beside the graph."""
    output = told(NUMBERS)
    output.detach().mul_(2)
    return ((output - Y) ** 2).mean()


KNOWN = {
    "power": ("mse_loss", lambda: ((told(NUMBERS) - Y) ** 2).mean()),
    "turned": ("mse_loss", lambda: (Y - told(NUMBERS)).pow(2).mean()),
    "half": ("mse_loss", lambda: 0.5 * torch.mean(torch.square(told(NUMBERS)[:, 0] - Y[:, 0]))),
    "twice": ("mse_loss", twice),
    "by axes": ("mse_loss", lambda: ((told(NUMBERS) - Y) ** 2).sum(1).mean()),
    "divided": ("l1_loss", lambda: (told(NUMBERS) - Y).abs().sum() / len(X)),
    "gathered": ("nll_loss", lambda: -logarithms().gather(1, CLASSES[:, None]).mean()),
    "indexed": ("nll_loss", lambda: -logarithms()[torch.arange(64), CLASSES].mean()),
    "negative": ("nll_loss", lambda: (-logarithms()[range(64), CLASSES]).sum()),
}
UNKNOWN = {
    "a part": lambda: ((told(NUMBERS) - Y) ** 2)[1:].mean(),
    "upwards": lambda: logarithms().gather(1, CLASSES[:, None]).mean(),
    "turned upwards": lambda: -((told(NUMBERS) - Y) ** 2).mean(),
    "pairs": lambda: ((told(NUMBERS) - Y[:, 0]) ** 2).mean(),
    "weighed": lambda: (X[:, :1] * (told(NUMBERS) - Y) ** 2).mean(),
    "two outputs": lambda: ((told(NUMBERS) - told(SCORES)[:, :1]) ** 2).mean(),
    "two terms": lambda: ((told(NUMBERS) - Y) ** 2).mean() + told(SCORES).pow(2).mean(),
    "powers": lambda: ((told(NUMBERS) - Y) ** torch.full((64, 1), 2.0)).mean(),
    "cubes": lambda: ((told(NUMBERS) - Y) ** 3).mean(),
    "one for each sample": lambda: ((told(NUMBERS) - Y) ** 2).mean(1),
    "no output": lambda: ((NUMBERS(X) - Y) ** 2).mean(),
    "written over": written_over,
    "scaled": lambda: ((told(NUMBERS).mul_(2) - Y) ** 2).mean(),
    "rewarded": lambda: -(logarithms().gather(1, CLASSES[:, None]) * Y).mean(),
    "of torch": lambda: functional.mse_loss(told(NUMBERS), Y),
}


@pytest.mark.parametrize("written", KNOWN)
def test_a_loss_by_hand_is_the_function_that_returns_the_same(written: str) -> None:
    """Of what it was made of, the function returns the same number."""
    (function, make), wanted = KNOWN[written], Y  # as it is called where the loss goes backward
    found = read_loss(make())
    assert found is not None
    assert found.function == function
    again = getattr(functional, function)(found.scores, found.target, reduction=found.reduction)
    assert torch.allclose(found.value, again, rtol=1e-5)
    assert found.target is wanted or found.target.shape != wanted.shape


@pytest.mark.parametrize("written", UNKNOWN)
def test_other_losses_are_not_taken_for_one(written: str) -> None:
    """Parts, weights, pairs and what is made of two outputs are something else."""
    assert read_loss(UNKNOWN[written]()) is None


def record(by_hand: bool) -> BaselineFit:
    """Train on noise, and return how the losses are beside those of a constant."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noise = torch.randn(64, 1)
    with Recorder("x") as recorder:
        for _ in range(12):
            output = model(X)
            loss = ((output - noise) ** 2).mean() if by_hand else functional.mse_loss(output, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    return next(event for event in recorder.trace if isinstance(event, BaselineFit))


def test_a_loss_by_hand_is_compared_with_a_constant_as_that_of_torch_is() -> None:
    """Both give the same numbers, and all passes come from it."""
    own, known = record(by_hand=True), record(by_hand=False)
    assert own.function == known.function == "mse_loss"
    assert (own.losses, own.constants, own.only) == (known.losses, known.constants, known.only)
