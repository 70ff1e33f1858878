"""What a model returns as a constant and something with a bound, a ReLU."""

import torch

from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, maker_of, saved


def beside_constant(tensor: torch.Tensor) -> tuple[Node, int] | None:
    """Return what is added to a constant to make a tensor, and its sign: -1 if it is taken off."""
    node: Node = None if tensor.grad_fn is None else maker_of(tensor.grad_fn)
    if node is None or kind_of(node) not in ("AddBackward", "SubBackward"):
        return None
    live = [place for place, (before, _) in enumerate(node.next_functions) if before is not None]
    if len(live) != 1 or saved(node, "alpha") != 1:
        return None
    sign = -1 if kind_of(node) == "SubBackward" and live[0] else 1
    return maker_of(node.next_functions[live[0]][0]), sign


def what_is_left(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    """Return what that part would have to be, for the constant beside it to meet a target."""
    part = beside_constant(scores)
    made = None if part is None else saved(part[0], "result")
    if part is None or made is None or not made.numel() == scores.numel() == target.numel():
        return None
    constant = scores.detach() - part[1] * made.detach().reshape(scores.shape)
    left: torch.Tensor = part[1] * (target.detach().reshape(scores.shape) - constant)
    return left
