"""Where an influence is seen first: what of a result is looked at, and when nothing is told."""

import numpy as np
import pytest
import torch

from trainguard.observe.loop.counterfactual.influence import (
    SeenResult,
    find_entry,
    keep_in_order,
    keep_places,
    keep_rows_after_first,
)

PADDED = torch.arange(6) >= torch.tensor([[5], [4]])


def result(place: str, *layouts: float) -> SeenResult:
    """Return a result with one number in each layout."""
    return SeenResult(place, [np.array([number]) for number in layouts])


def test_the_first_result_that_changes() -> None:
    """In all layouts that it may have, and by more than rounding."""
    plain = [result("a", 1.0), result("b", 1.0, 1.0), result("c", 1.0, 1.0), result("d", 1.0)]
    edited = [result("a", 1 + 1e-9), result("b", 1.0, 2.0), result("c", 2.0, 2.0), result("d", 9.0)]
    assert find_entry(plain, edited, 1e-5) == "c"
    assert find_entry(plain[:2], edited[:2], 1e-5) == ""
    assert find_entry([], edited, 1e-5) == ""


def test_steps_that_go_two_ways() -> None:
    """Where another function comes, or another shape, what follows cannot be held together."""
    plain = [result("a", 1.0), result("c", 1.0)]
    assert find_entry(plain, [result("b", 1.0), result("c", 2.0)], 1e-5) == ""
    longer = SeenResult("a", [np.array([1.0, 1.0])])
    assert find_entry(plain, [longer, result("c", 2.0)], 1e-5) == ""


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x.transpose(0, 1),
        lambda x: x.permute(0, 2, 1),
        lambda x: x.flatten(0, 1),
        lambda x: x[:, 1:],
        lambda x: x[:, :-1],
        lambda x: torch.cat([torch.zeros(2, 1, 9), x], 1),
        lambda x: x[:, None].expand(2, 8, 6, 9),
        lambda x: x @ x.mT,
        lambda x: torch.cat([x, x]),  # samples and heads in one axis
    ],
)
def test_padded_places_are_left_out(layout) -> None:
    """On every axis that may be that of places, and what is not padded stays."""
    plain = torch.rand(2, 6, 9)
    edited = plain + PADDED[:, :, None]
    keep = keep_places(PADDED)
    (before,), (after,) = keep(layout(plain)), keep(layout(edited))
    assert torch.equal(before, after)
    assert before.any()
    others = plain + ~PADDED[:, :, None]
    (changed,) = keep(layout(others))
    assert not torch.equal(before, changed)


def test_sums_over_places() -> None:
    """A row for each sample is looked at, a number with a graph, and nothing of unknown layout."""
    keep = keep_places(PADDED)
    assert len(keep(torch.rand(2, 9))) == 1
    assert len(keep(torch.rand((), requires_grad=True))) == 1
    for other in (torch.rand(()), torch.rand(3, 9), torch.rand(2, 3, 9), torch.rand(9)):
        assert keep(other) == []
    learned = keep_places(PADDED, learned=True)
    assert learned(torch.rand(2, 6)) == []
    assert len(learned(torch.rand(2, 6, requires_grad=True))) == 1


def test_samples_on_any_axis() -> None:
    """The first one is left out, an order is put back; of two axes that fit both are tried."""
    table, order = torch.rand(4, 3), torch.tensor([1, 3, 2, 0])
    (rest,) = keep_rows_after_first(4)(table.T)
    assert torch.equal(rest, table.T[:, 1:])
    assert keep_rows_after_first(4)(torch.rand(4, 4)) == []
    assert len(keep_rows_after_first(4)(torch.rand(4, 3, 4))) == 2
    (back,) = keep_in_order(order.argsort())(table[order])
    assert torch.equal(back, table)
    assert keep_in_order(order)(torch.rand(())) == []
    assert len(keep_in_order(order)(torch.rand((), requires_grad=True))) == 1
