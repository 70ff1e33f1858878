"""What can be read of the graph that autograd keeps."""

import torch

from trainguard.observe.loop.watch.gradients.autograd_graph import saved


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
