"""How the terms of a loss pull, against one another."""

from math import isclose

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainguard.events.loop import Term
from trainguard.observe.loop.recorder import Recorder

checkpoints = pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast:FutureWarning")


class Heads(nn.Module):
    """A trunk with a head for classes and one for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.drop = nn.Linear(4, 8), nn.Dropout(0.2)
        self.classes, self.number = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the features, the scores and the number."""
        hidden = self.drop(torch.tanh(self.trunk(inputs)))
        return hidden, self.classes(hidden), self.number(hidden)


class Doubled(torch.autograd.Function):
    """A function of the user's own, which may do anything in its backward."""

    @staticmethod
    def forward(ctx, value):
        """Double it."""
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        """Double it."""
        return gradient * 2


def train(loss, steps: int = 70, model: nn.Module | None = None, rate: float = 0.01) -> nn.Module:
    """Train with a loss of what the heads return, of classes and of numbers."""
    torch.manual_seed(0)
    model = model or Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        inputs, classes, number = torch.randn(16, 4), torch.randint(3, (16,)), torch.randn(16, 1)
        optimizer.zero_grad()
        loss(*model(inputs), classes, number).backward()
        optimizer.step()
    return model


def shares(loss, *, probe: bool = True, **options) -> list[tuple[float, ...]]:
    """Record a training and return the shares of its terms."""
    with Recorder("x", probe=probe) as recorder:
        train(loss, **options)
    return [event.shares for event in recorder.trace if isinstance(event, Term)]


def two(_hidden, scores, output, classes, number, weight: float = 0.1) -> torch.Tensor:
    """Return a sum of two terms."""
    return F.cross_entropy(scores, classes) + weight * F.mse_loss(output, number)


def test_shares_are_of_the_largest_term() -> None:
    """At steps 1, 4, 16 and 64 the larger term has 1, and the other what is left of it."""
    first, second = shares(two)
    assert first == (1.0, 1.0, 1.0, 1.0)
    assert len(second) == 4
    assert all(0.05 < share < 0.9 for share in second)


def test_a_share_is_that_of_the_gradients() -> None:
    """It is the ratio of the norms that autograd gives for each term by itself."""
    expected = {}

    def loss(hidden, scores, output, classes, number) -> torch.Tensor:
        """Return a sum of two terms, and at the second step compute their gradients."""
        expected["calls"] = expected.get("calls", 0) + 1
        made = F.cross_entropy(scores, classes), 0.1 * F.mse_loss(output, number)
        if expected["calls"] == 2:
            trunk = [p for p in expected["model"].trunk.parameters() if p.dim() > 1]
            grads = [torch.autograd.grad(term, trunk, retain_graph=True) for term in made]
            norms = [float(grad[0].norm()) for grad in grads]
            expected["share"] = norms[1] / norms[0]
        return sum(made)

    expected["model"] = Heads()
    _, second = shares(loss, steps=3, model=expected["model"])
    assert len(second) == 1
    assert isclose(second[0], expected["share"], rel_tol=1e-5)


def test_the_weight_of_a_term_counts() -> None:
    """A term that is weighted a hundred times less pulls a hundred times less."""

    def weighted(weight: float) -> list[tuple[float, ...]]:
        """Return the shares with the second term weighted."""
        return shares(lambda *args: two(*args, weight=weight), steps=3, rate=0.0)

    (_, (much,)), (_, (little,)) = weighted(0.1), weighted(0.001)
    assert isclose(much, 100 * little, rel_tol=1e-3)


def test_a_part_by_hand_is_no_part_of_the_terms() -> None:
    """What is written by hand pulls too, and is not counted to the terms."""

    def loss(hidden, *rest) -> torch.Tensor:
        """Add a part by hand."""
        return two(hidden, *rest) + 50 * hidden.square().mean()

    with_part, without = (shares(each, steps=3, rate=0.0) for each in (loss, two))
    assert all(isclose(a[0], b[0], rel_tol=1e-3) for a, b in zip(with_part, without, strict=True))


def test_a_term_that_is_not_reduced_is_one_too() -> None:
    """A weighted mean of a function without reduction is found behind the mean."""

    def loss(_hidden, scores, output, classes, number) -> torch.Tensor:
        """Mask one of the terms."""
        each = F.mse_loss(output, number, reduction="none")
        return F.cross_entropy(scores, classes) + (each * (number > 0)).mean()

    assert [len(own) for own in shares(loss)] == [4, 4]


def test_turns_of_one_line_are_told_apart() -> None:
    """A loop over heads calls one line for each of its terms."""

    def loss(_hidden, _scores, output, _classes, number) -> torch.Tensor:
        """Return a sum over three targets, the last of a scale of its own."""
        return sum(F.mse_loss(output, number * scale) for scale in (0.5, 1.0, 1000.0))

    first, second, third = shares(loss, rate=0.0)
    assert third == (1.0, 1.0, 1.0, 1.0)
    assert max(first + second) < 0.01


def test_many_turns_are_a_sequence() -> None:
    """A loss for each position of a sequence is no sum of different terms."""

    def loss(_hidden, _scores, output, _classes, number) -> torch.Tensor:
        """Return a sum over positions."""
        return sum(F.mse_loss(output[place], number[place]) for place in range(16))

    assert shares(loss) == [()]


def hooked(hidden, *rest) -> torch.Tensor:
    """Let the user listen to a gradient."""
    hidden.register_hook(lambda gradient: None)
    return two(hidden, *rest)


class Listened(nn.Module):
    """A module whose gradients the user listens to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_backward_hook(lambda *_: None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what it is given, times one."""
        return hidden * 1.0


def listened(hidden, *rest) -> torch.Tensor:
    """Let the user listen to the gradients of a module."""
    return two(Listened()(hidden), *rest)


def retained(hidden, *rest) -> torch.Tensor:
    """Let the user keep a gradient."""
    hidden.retain_grad()
    return two(hidden, *rest)


def custom(hidden, scores, *rest) -> torch.Tensor:
    """Have a function of the user's in the graph."""
    return two(hidden, Doubled.apply(scores), *rest)


def checkpointed(hidden, scores, *rest, reentrant: bool = False) -> torch.Tensor:
    """Have activations computed anew."""
    return two(hidden, checkpoint(torch.tanh, scores, use_reentrant=reentrant), *rest)


@checkpoints
@pytest.mark.filterwarnings("ignore:.*non-full backward hook:FutureWarning")
@pytest.mark.parametrize(
    "loss",
    [
        lambda _h, scores, _o, classes, _n: F.cross_entropy(scores, classes),
        hooked,
        listened,
        retained,
        custom,
        checkpointed,
        lambda *args: checkpointed(*args, reentrant=True),
    ],
    ids=["one", "hook", "module", "retain", "custom", "checkpoint", "reentrant"],
)
def test_what_would_be_noticed_is_left_alone(loss) -> None:
    """One term has no share; where the user could see another backward, none is made."""
    assert not any(shares(loss))


def test_probes_can_be_switched_off() -> None:
    """Without probes no gradient is computed but the user's."""
    assert shares(two, probe=False) == [(), ()]


@checkpoints
@pytest.mark.parametrize("loss", [two, hooked, checkpointed])
def test_the_training_is_the_same_bit_for_bit(loss) -> None:
    """Parameters end where they would have, dropout included."""
    alone = [p.clone() for p in train(loss, 20).parameters()]
    with Recorder("x"):
        watched = list(train(loss, 20).parameters())
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))


def test_gradients_under_autocast_are_compared() -> None:
    """Losses in bfloat16 have shares too."""

    def loss(hidden, *rest) -> torch.Tensor:
        """Compute the terms under autocast."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return two(hidden, *rest)

    assert [len(own) for own in shares(loss)] == [4, 4]
