"""Outputs of a constant and something with bounds: which targets these can meet."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.loop import Term
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.bounded_parts import beside_constant, what_is_left

Make = Callable[[torch.Tensor, nn.Module], torch.Tensor]


def term(make: Make, *, shape: tuple[int, ...] = (8, 4)) -> Term:
    """Learn noise, of either sign, from what is made; return what was said of the loss."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            given = torch.randn(8, 4)
            optimizer.zero_grad()
            target = (given + torch.randn(8, 4)).reshape(shape)
            F.mse_loss(make(given, layer), target).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    (found,) = [e for e in recorder.trace if isinstance(e, Term)]
    return found


@pytest.mark.parametrize(
    ("make", "producer"),
    [
        (lambda x, f: x + f(x).relu(), "constant + ReluBackward0"),
        (lambda x, f: f(x).relu() + x, "constant + ReluBackward0"),
        (lambda x, f: x - f(x).relu(), "constant - ReluBackward0"),
        (lambda x, f: f(x).relu() - x, "constant + ReluBackward0"),
        (lambda x, f: (x[:, None] - f(x).relu()[:, None]).squeeze(1), "constant - ReluBackward0"),
    ],
)
def test_what_a_constant_stands_beside_is_named(make: Make, producer: str) -> None:
    """Some of the targets are out of its reach."""
    found = term(make)
    assert found.producer == producer
    assert 0.1 < found.beyond < 0.9


@pytest.mark.parametrize(
    "make",
    [
        lambda x, f: x - f(x),
        lambda x, f: f(x) - f(x).relu(),
        lambda x, f: f(x).relu() - f(x),
        lambda x, f: torch.sub(x, f(x).relu(), alpha=2),
        lambda x, f: x * f(x).relu(),
        lambda x, f: x - f(x).tanh(),
    ],
    ids=[
        "without bounds",
        "both learn",
        "the first of both",
        "twice",
        "a product",
        "a step of a size",
    ],
)
def test_what_has_no_bounds_is_not(make: Make) -> None:
    """What is beside it may learn, or the sum may be another."""
    found = term(make)
    assert not found.producer.startswith("constant")
    assert found.beyond == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_left_meets_the_target(sign: int) -> None:
    """Put in the place of the part, it makes the target of the scores."""
    given, learned = torch.randn(6, 3), torch.randn(6, 3, requires_grad=True)
    scores = given + learned.relu() if sign > 0 else given - learned.relu()
    target = torch.randn(18)
    left = what_is_left(scores, target)
    assert left is not None
    assert torch.allclose(given + sign * left, target.reshape(6, 3), atol=1e-6)
    assert what_is_left(scores, target[:9]) is None
    assert what_is_left(learned.relu(), target) is None
    assert beside_constant(given) is None
    assert beside_constant(learned) is None
