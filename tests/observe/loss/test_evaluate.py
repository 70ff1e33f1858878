"""Thousands of points in one call give what they give one by one, in value and gradient."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.loss.evaluate import Evaluator, Mode
from trainguard.observe.tools.points import draw

LOSSES: dict[str, tuple[Callable[..., Tensor], Mode]] = {
    "rows": (lambda x, w, y: (w * (x - y)).square().sum(-1).sum(-1), Mode.ROWS),
    "sum": (lambda x, w, y: (w * (x - y).tanh()).exp().sum(), Mode.SUM),
    "mean": (lambda x, w, y: (w.exp() * (x - y).abs()).mean(), Mode.MEAN),
    "coupled": (lambda x, w, y: (w * x).softmax(0).mul(y + x).sum().square(), Mode.VMAP),
    "looped": (
        lambda x, w, y: (
            (w * x).sum() if float(x.detach().flatten()[0]) > 0 else (x - y).square().mean().exp()
        ),
        Mode.LOOP,
    ),
}
LEAST = {"B": 2, "T": 1, "D": 1}
INPUTS = {
    "x": tg.real("B T D", -1, 1),
    "w": tg.real("B T D", -1, 1),
    "y": tg.real("B T D", -1, 1, grad=False),
}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_batched_is_one_by_one(name: str, data: st.DataObject, made) -> None:
    """In every mode, dtype and shape, each point has the value and gradients that it has alone."""
    function, mode = LOSSES[name]
    sizes = {dim: data.draw(st.integers(least, 4), dim) for dim, least in LEAST.items()}
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    evaluator = made(function, sizes, dtype=dtype, **INPUTS)
    assert evaluator.mode is mode
    points = draw(evaluator.box, 7, Generator().manual_seed(data.draw(st.integers(0, 99))))
    values, gradients = one_by_one(evaluator, points)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(evaluator.values(points), values, **close)
    together, each = evaluator.gradients(points, each=True)
    torch.testing.assert_close(each, values, **close)
    for found in (together, evaluator.gradients(points)[0]):
        assert found.keys() == {"x", "w"}
        for one in found:
            torch.testing.assert_close(found[one], gradients[one], **close)


def one_by_one(made: Evaluator, points: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Call the loss itself at each point, and differentiate each call."""
    values, gradients = [], []
    for index in range(len(points["x"])):
        point = made.single(points, index, grad=True)
        value = made.loss.function(**point).sum()
        values.append(value.detach())
        gradients.append(
            torch.autograd.grad(value, [point["x"], point["w"]], materialize_grads=True)
        )
    x, w = (torch.stack(column) for column in zip(*gradients, strict=True))
    return torch.stack(values), {"x": x, "w": w}


def test_an_average_stands_for_values_that_are_not_asked_for(made) -> None:
    """Where one call gives a sum only, finite values cost nothing more."""
    calls = []

    def counted(x):
        calls.append(len(x))
        return x.square().sum()

    evaluator = made(counted, x=tg.real("B", -1, 1))
    points = {"x": torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)}
    calls.clear()
    _, values = evaluator.gradients(points)
    assert (calls, values.tolist()) == ([3], [14 / 3] * 3)


def test_one_bad_value_is_told_apart(made) -> None:
    """Where the sum is not finite, each value is looked at by itself."""
    evaluator = made(lambda x: x.log().sum(), x=tg.real("B", 0, 1))
    assert evaluator.mode is Mode.SUM
    points = {"x": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
    assert evaluator.gradients(points)[1].tolist() == [-torch.inf, 0.0]


def test_an_input_that_is_not_used_has_no_slope(made) -> None:
    """A gradient that never arrives is zero, in the shape of its input."""
    inputs = {"x": tg.real("B", -1, 1), "idle": tg.real("B K", -1, 1)}
    evaluator = made(lambda x, idle: x.sum(), **inputs)
    points = draw(evaluator.box, 5, Generator().manual_seed(0))
    gradients, _ = evaluator.gradients(points)
    assert torch.equal(gradients["idle"], torch.zeros(5, 1, 2, dtype=torch.float64))


def test_a_detached_loss_is_a_fault(made) -> None:
    """A loss that no gradient can flow back from is told in words."""
    evaluator = made(lambda x: x.detach().sum(), x=tg.real("B", -1, 1))
    points = draw(evaluator.box, 5, Generator().manual_seed(0))
    with pytest.raises(SubjectError, match="its result is detached from its inputs"):
        evaluator.gradients(points)


def test_the_points_are_left_alone(made) -> None:
    """Neither the numbers nor the flags of the points change by being evaluated."""
    evaluator = made(lambda x: x.square().sum(), x=tg.real("B", -1, 1))
    points = draw(evaluator.box, 5, Generator().manual_seed(0))
    before = points["x"].clone()
    evaluator.gradients(points)
    assert torch.equal(points["x"], before)
    assert not points["x"].requires_grad


def test_a_random_loss_draws_the_same_for_every_point(made) -> None:
    """Each point meets the same random numbers, so that points can be compared."""
    evaluator = made(lambda x: (x * torch.rand(())).sum() + x.norm(), x=tg.real("B", -1, 1))
    points = {"x": torch.ones(4, 2, dtype=torch.float64)}
    assert evaluator.mode is Mode.VMAP
    assert len(evaluator.values(points).unique()) == 1


def test_larger_points_come_in_smaller_rounds(made) -> None:
    """A round is a power of two of points, and the fewer the larger they are."""
    batches = [
        made(lambda x: x.square().sum(), {"D": size}, x=tg.real("B D", -1, 1)).batch
        for size in (4, 4000, 40_000)
    ]
    assert all(batch & (batch - 1) == 0 for batch in batches)
    assert batches[0] >= 8192 > batches[1] > batches[2] >= 16


def test_a_sum_that_cannot_be_vectorised_has_shorter_rounds(made) -> None:
    """Where a sum overflows, each value takes a call: in float16 that is every large round."""
    inputs = {"x": tg.real("B", -1, 1)}
    wide = made(lambda x: x.square().sum(), **inputs, dtype=torch.float32)
    half = made(lambda x: x.square().sum(), **inputs, dtype=torch.float16)
    assert (wide.mode, half.mode) == (Mode.SUM, Mode.SUM)
    assert half.batch <= 4096 < wide.batch


def test_a_python_loop_has_short_rounds(made) -> None:
    """Where each point costs a call, a round has few of them."""
    evaluator = made(LOSSES["looped"][0], **INPUTS)
    assert (evaluator.batch, evaluator.loops) == (64, True)
