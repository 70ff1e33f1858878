"""What can be read of the graph that autograd keeps."""

import torch

from trainguard.observe.loop.watch.gradients.autograd_graph import below, given_to, saved


def test_what_is_not_at_hand_is_nothing() -> None:
    """What was written since, and what a backward has used up."""
    x, factor = torch.ones(3, requires_grad=True), torch.ones(3)
    product = x * factor
    assert torch.equal(saved(product.grad_fn, "other"), factor)
    assert saved(product.grad_fn, "no such name") is None
    factor.add_(1)
    assert saved(product.grad_fn, "other") is None
    spent = x * torch.ones(3)
    spent.sum().backward()
    assert saved(spent.grad_fn, "other") is None


def test_what_a_layer_is_given_that_no_other_has_made() -> None:
    """Of two in a row, that of the first; and nothing of other kinds of nodes."""
    first, second = (torch.nn.Linear(3, 3) for _ in range(2))
    rows, names = torch.randn(4, 3), {"AddmmBackward": "mat1"}
    made = first(rows)
    assert torch.equal(given_to(made.grad_fn, names), rows)
    assert given_to(second(made).grad_fn, names) is None
    assert given_to(made.grad_fn, {}) is None


def test_a_walk_goes_no_further_than_its_ends() -> None:
    """They are told themselves, and what other ways lead to."""
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    product = x * x
    total = (product + y).sum()
    found = list(below(total.grad_fn, 100, ends={product.grad_fn}))
    leaves = [node.variable for node in found if hasattr(node, "variable")]
    assert product.grad_fn in found
    assert [leaf is y for leaf in leaves] == [True]
