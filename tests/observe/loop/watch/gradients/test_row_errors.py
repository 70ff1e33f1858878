"""What errors were for each row of a batch, by the graph of their mean."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.torches import SHAPES
from trainguard.observe.loop.watch.gradients.row_errors import row_errors

Y = torch.arange(24.0).reshape(4, 2, 3).sin() + 2


@SHAPES
@pytest.mark.parametrize(
    "error",
    [
        lambda out: (out - Y).abs(),
        lambda out: (out - Y) * (out - Y),
        lambda out: F.mse_loss(out, Y, reduction="none"),
        lambda out: F.huber_loss(out, Y, reduction="none", delta=0.3),
        lambda out: F.smooth_l1_loss(out, Y, reduction="none", beta=0.3),
        lambda out: F.binary_cross_entropy_with_logits(out, Y, reduction="none"),
        lambda out: -3 * (out - Y).norm(dim=-1) / 2,
        lambda out: torch.log10((out - Y).square().sum(-1)).sqrt(),
        lambda out: (out - Y).pow(4).transpose(1, 2)[:, 1:].flip(1),
        lambda out: (out - Y).pow(2)[:, :, [2, 0]].permute(0, 2, 1),
        lambda out: (out - Y).pow(2).unbind(1)[1] + (out - Y).abs().split(1, 1)[0].squeeze(1),
        lambda out: out.exp().mean(-1, keepdim=True),
        lambda out: out.log().select(2, 1),
    ],
)
def test_rows(error: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A mean or sum over all, or over one axis after another, is the mean of what is read."""
    out = (Y.clone() + 4 + Y.cos()).requires_grad_()
    each = error(out)
    rows = each.detach().flatten(1).mean(1)
    for total in (each.mean(), each.flatten(1).mean(1).mean(0), each.mean(0).mean()):
        found = row_errors((total.grad_fn, 0), 4)
        assert found is not None
        torch.testing.assert_close(found, rows)
    found = row_errors((each.sum().grad_fn, 0), 4)
    assert found is not None
    torch.testing.assert_close(found.mean(), each.sum().detach())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_functions(reduction: str) -> None:
    """They take a mean or a sum themselves."""
    out = Y.clone().add(1).requires_grad_()
    total = F.mse_loss(out, 2 * Y, reduction=reduction)
    found = row_errors((total.grad_fn, 0), 4)
    assert found is not None
    torch.testing.assert_close(found.mean(), total.detach())


def test_what_is_not_known() -> None:
    """Other operations, means of some other axis, and other rows."""
    out = Y.clone().requires_grad_()
    for total in (out.sin().mean(), out.abs().mean(1).prod(), out.abs().mean((1, 2))):
        assert row_errors((total.grad_fn, 0), 4) is None
    assert row_errors((out.abs().mean().grad_fn, 0), 5) is None
