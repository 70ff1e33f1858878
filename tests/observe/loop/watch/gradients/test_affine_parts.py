"""What a loss is a weighed sum of."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainguard.observe.loop.watch.gradients.affine_parts import affine_parts, resolve
from trainguard.observe.loop.watch.gradients.autograd_graph import kind_of


def parts(loss: torch.Tensor) -> dict[str, tuple[float, bool]]:
    """Return the factor of each part by the kind of its node, and whether something is added."""
    found = affine_parts((loss.grad_fn, 0))
    return {kind_of(part.node): (round(part.factor, 6), part.is_moved) for part in found}


def learned(*shape: int) -> torch.Tensor:
    """Return numbers that learn."""
    return torch.rand(*shape).add(0.5).requires_grad_()


def test_signs_and_factors_of_a_sum() -> None:
    """Differences, constants on either side, quotients and means."""
    x = learned(3, 4)
    loss = 2 * x.exp().mean() - (x.log().sum(1) / 4).mean() + (1 - x.sqrt()).sum() * -3
    assert parts(loss) == {
        "ExpBackward": (2.0, False),
        "LogBackward": (-0.25, False),
        "SqrtBackward": (3.0, True),
    }
    assert parts((5 + x.exp() - 2 * x.log()).sum())["LogBackward"] == (-2.0, False)
    assert parts(torch.ops.aten.mul.Scalar(x.exp().sum(), 2.0)) == {"ExpBackward": (2.0, False)}
    assert parts(torch.sub(x.exp(), x.log(), alpha=3).sum())["LogBackward"] == (-3.0, False)


def test_weights_of_samples_count_as_the_largest() -> None:
    """Those of both signs, or none, hide what they multiply; so does what is learned."""
    x, mask = learned(4), torch.tensor([0.0, 1.0, 1.0, 0.5])
    assert parts((x.exp() * mask).sum()) == {"ExpBackward": (1.0, False)}
    assert parts((x.exp() * -mask).sum()) == {"ExpBackward": (-1.0, False)}
    assert parts((x.exp() * (mask > 0)).sum()) == {"ExpBackward": (1.0, False)}
    assert parts((x.exp() / 0.0).sum()) == {"DivBackward": (1.0, False)}
    assert parts(torch.sub(x.exp(), x.log(), alpha=0).sum()) == {"ExpBackward": (1.0, False)}
    assert parts((x.exp() * (3 * mask)).sum()) == {"ExpBackward": (3.0, False)}
    assert parts((x.exp() * (mask - 0.5)).sum()) == {"MulBackward": (1.0, False)}
    assert parts((x.exp() * 0).sum()) == {"MulBackward": (1.0, False)}
    assert parts((x.exp() * x.log()).sum()) == {"MulBackward": (1.0, False)}
    assert parts((1 / x).sum()) == {"ReciprocalBackward": (1.0, False)}
    assert parts((mask / x).sum()) == {"DivBackward": (1.0, False)}


def test_what_ends_a_sum_is_a_part() -> None:
    """Its own parts are not looked at."""
    x = learned(4)
    inner = x.exp() - x.log()
    (part,) = affine_parts((inner.sum().grad_fn, 0), ends=lambda node: node is inner.grad_fn)
    assert part.node is inner.grad_fn


def test_resolving_goes_through_shapes_alone() -> None:
    """Reshaped twice it is the same output of the same node; a slice is another one."""
    made = learned(4, 2).exp()
    assert resolve((made.reshape(8).unsqueeze(0).grad_fn, 0)) == (made.grad_fn, 0)
    assert resolve((made[:2].grad_fn, 0))[0] is not made.grad_fn
    assert resolve((None, 0)) == (None, 0)


@given(st.lists(st.floats(0.125, 8, width=32), min_size=1, max_size=6), st.data())
def test_factors_multiply(factors: list[float], data: st.DataObject) -> None:
    """However a number is multiplied, divided and negated, its factor is known."""
    x = learned(3)
    value, expected = x.exp(), 1.0
    for factor in factors:
        how = data.draw(st.sampled_from(["*", "/", "-", "+"]))
        if how == "-":
            value, expected = factor - value, -expected
        elif how == "+":
            value = value + factor
        else:
            value = value * factor if how == "*" else value / factor
            expected = expected * factor if how == "*" else expected / factor
    (part,) = affine_parts((value.sum().grad_fn, 0))
    assert abs(part.factor - expected) <= 1e-5 * abs(expected)
