"""Outputs that a likelihood takes for a variance, and a distribution for a deviation."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainguard.observe.loop.recorder import Recorder


class Forecaster(nn.Module):
    """Returns a mean and a spread for each row."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        """Return a mean and a spread."""
        mean, spread = self.head(x).unbind(1)
        return mean, functional.softplus(spread) + 1e-3


def given_sigma(model, x, y):
    """Give what is called a deviation."""
    mean, sigma = model(x)
    return functional.gaussian_nll_loss(mean, y, sigma)


def given_named(model, x, y):
    """Give it by the keyword, to a module."""
    mean, the_std = model(x)
    return nn.GaussianNLLLoss()(mean, y, var=the_std)


def given_square(model, x, y):
    """Give its square."""
    mean, sigma = model(x)
    return functional.gaussian_nll_loss(mean, y, sigma**2)


def given_variance(model, x, y):
    """Give what is called a variance."""
    mean, var = model(x)
    return functional.gaussian_nll_loss(mean, y, var)


def given_squared_name(model, x, y):
    """Give what is called the square of a deviation."""
    mean, sigma2 = model(x)
    return functional.gaussian_nll_loss(mean, y, sigma2)


def train(lose, evaluate) -> list[tuple[float, str]]:
    """Return what is found where a forecaster learns by a loss and is evaluated."""
    torch.manual_seed(0)
    model, x, y = Forecaster(), torch.randn(16, 3), torch.randn(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            lose(model, x, y).backward()
            optimizer.step()
            with torch.no_grad():
                evaluate(*model(x), y)
    assert "faults" not in recorder.trace.conditions
    assert "deviation" in recorder.trace.conditions["looked"]
    events = [e for e in recorder.trace if getattr(e, "probe", "") == "deviation"]
    return [(event.measured, event.label) for event in events]


def as_deviation(mean, spread, y):
    """Make a distribution of what the model returns."""
    return torch.distributions.Normal(loc=mean, scale=spread).log_prob(y)


def as_variance(mean, spread, y):
    """Make a distribution of its root."""
    return torch.distributions.Normal(mean, spread.sqrt()).log_prob(y)


BOTH = [(4.0, "Forecaster output 1")]


@pytest.mark.parametrize(
    ("lose", "evaluate", "found"),
    [
        (given_sigma, as_deviation, BOTH),
        (given_named, as_deviation, BOTH),
        (given_variance, as_deviation, BOTH),
        (given_square, as_deviation, []),
        (given_variance, as_variance, []),
        (given_squared_name, as_variance, []),
        (given_sigma, as_variance, [(0.0, "sigma")]),
        (given_named, as_variance, [(0.0, "the_std")]),
    ],
)
def test_what_a_likelihood_is_given(lose, evaluate, found) -> None:
    """By its other use, and by its name where there is none."""
    assert train(lose, evaluate) == found


def test_a_compiled_function_that_makes_a_distribution() -> None:
    """The compiler goes through it as a whole."""

    def sure(mean, spread, y):
        """Return how likely it is."""
        return torch.distributions.Normal(mean, spread, validate_args=False).log_prob(y).sum()

    with Recorder("x"):
        compiled = torch.compile(sure, backend="eager", fullgraph=True)
        given = torch.zeros(4), torch.ones(4), torch.ones(4)
        assert torch.equal(compiled(*given), sure(*given))
