"""The probe of differences: autograd beside three steps of a central difference."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import Unjudged
from trainguard.core.finding import Rank
from trainguard.events.trace import Trace
from trainguard.observe.loss.search import Key
from trainguard.observe.loss.slope import difference

XT = {"x": tg.real("B D", -2, 2), "t": tg.real("B D", -2, 2, grad=False)}


def ranks(made, measured, function, **inputs) -> set[Rank]:
    """Return the ranks of all that the judge finds in what is measured."""
    evaluator = made(function, **(inputs or XT))
    judge = find_invariants("gradient_matches_finite_difference")[0].judge
    return {
        finding.rank
        for key, found in measured(difference, evaluator, 32).items()
        for row in range(32)
        for finding in judge(Trace("loss", (found.sample(key, 0, row, found.points),)))
    }


SILENT = {
    "square": lambda x, t: (x - t).square().sum(),
    "L1": lambda x, t: (x - t).abs().sum(),
    "huber": lambda x, t: functional.huber_loss(x, t, delta=0.7),
    "hinge": lambda x, t: (1 - x * t.sign()).clamp_min(0).mean(),
    "root": lambda x, t: ((x - t).square() + 1e-9).sqrt().sum(),
    "norm": lambda x, t: (x - t).norm(dim=1).sum(),
    "cosine": lambda x, t: functional.cosine_similarity(x, t).sum(),
    "log": lambda x, t: (x + 2.0001).log().sum(),
    "steep": lambda x, t: (50 * (x - t)).exp().log1p().sum(),
    "large": lambda x, t: 1e9 + (x - t).square().sum(),
    "a jump": lambda x, t: torch.where(x > t, x + 1, x).sum(),
    "a high power": lambda x, t: (x - t).pow(9).sum(),
    "wiggles": lambda x, t: (1e5 * x).sin().sum(),
}


@pytest.mark.parametrize("name", SILENT)
def test_right_gradients(name: str, made, measured) -> None:
    """Kinks, jumps, poles and rounding do not look like a wrong gradient."""
    assert ranks(made, measured, SILENT[name]) == set()


class Square(torch.autograd.Function):
    """The square, whose backward forgets a factor."""

    factor = 2.0

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        """Return the square."""
        context.save_for_backward(x)
        return x * x

    @classmethod
    def slope(cls, x: Tensor) -> Tensor:
        """Return the slope."""
        return cls.factor * x

    @staticmethod
    def backward(context, grad: Tensor) -> Tensor:
        """Return the slope times the gradient."""
        (x,) = context.saved_tensors
        return 2.0 * x * grad


class HalfSquare(Square):
    """The same with the factor forgotten."""

    @staticmethod
    def backward(context, grad: Tensor) -> Tensor:
        """Return half of the slope."""
        (x,) = context.saved_tensors
        return x * grad


class BentSquare(Square):
    """The same with a slope that is wrong for large numbers only."""

    @staticmethod
    def backward(context, grad: Tensor) -> Tensor:
        """Return a slope that is cut off."""
        (x,) = context.saved_tensors
        return (2.0 * x).clamp(-3, 3) * grad


@pytest.mark.parametrize(
    ("function", "expected"),
    [(Square, set()), (HalfSquare, {Rank.BROKEN}), (BentSquare, {Rank.BROKEN})],
)
def test_a_custom_backward(function: type, expected: set[Rank], made, measured) -> None:
    """A backward that is right passes, and a wrong one is broken, whatever surrounds it."""
    loss = lambda x, t: (function.apply(x - t) + 0.5 * x).mean()  # noqa: E731
    assert ranks(made, measured, loss) == expected


def test_a_detached_factor_is_a_note(made, measured) -> None:
    """Without a custom backward the graph may be cut on purpose."""
    loss = lambda x, t: (x.detach() * (x - t)).sum()  # noqa: E731
    assert ranks(made, measured, loss) == {Rank.NOTE}


def test_both_numbers_are_told(made, measured) -> None:
    """What is measured are autograd's number, the difference and its doubt."""
    evaluator = made(lambda x: HalfSquare.apply(x).sum(), x=tg.real("B", 1, 2))
    found = measured(difference, evaluator, 8)[Key("difference", "x", "custom")]
    torch.testing.assert_close(found.measured * 2, found.reference, rtol=1e-5, atol=1e-6)
    assert float(found.scale.max()) < 1e-5


def test_the_element_is_told(made, measured) -> None:
    """Of several elements, the one whose slope is wrong is named."""
    evaluator = made(
        lambda x: x[:, :2].square().sum() + HalfSquare.apply(x[:, 2]).sum(),
        {"B": 1, "D": 3},
        x=tg.real("B D", 1, 2),
    )
    found = measured(difference, evaluator, 8)[Key("difference", "x", "custom")]
    assert set(found.coordinate.tolist()) == {2}


def test_the_points_leave_room_for_a_step(made, measured) -> None:
    """No loss is called outside the declared range."""

    def strict(x):
        assert float(x.detach().abs().max()) <= 1.0
        return x.square().sum()

    ends = {"x": torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)}
    measured(difference, made(strict, x=tg.real("B", -1, 1)), ends)


def test_float32_inside_is_not_judged(made, measured) -> None:
    """Where rounding swamps the difference, nothing can be said."""
    for coarse in (
        lambda x: x.float().square().sum(),
        lambda x: x.float().square().sum().double(),
    ):
        with pytest.raises(Unjudged, match="computes in float32 inside"):
            measured(difference, made(coarse, x=tg.real("B", -1, 1)), 16)


def test_losses_of_whole_numbers_are_judged(made, measured) -> None:
    """Values that happen to be whole numbers do not look like float32."""
    assert ranks(made, measured, lambda x: x.relu().sum() * 0, x=tg.real("B", -1, 1)) == set()
