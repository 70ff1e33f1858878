"""Tells outputs that say in which order a module has put the samples of its batch."""

from typing import Any

import torch

from trainguard.observe.loop.locate_nonfinite import tensors_in


def tells_an_order(output: Any) -> bool:
    """
    Say whether there is, beside an output, each number below that of the samples, once.

    Then its rows are perhaps not those of the input one by one, and the caller knows whose they
    are: models that sort their batch by length return such an order.
    """
    if isinstance(output, torch.Tensor):
        return False
    rows = [t for t in tensors_in(output) if t.dim() == 1 and t.dtype == torch.int64 and len(t) > 1]
    return any(torch.equal(t.sort().values, torch.arange(len(t), device=t.device)) for t in rows)
