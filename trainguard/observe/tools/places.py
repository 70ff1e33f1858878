"""
Where the numbers of a tensor lie: two tensors of one place show the same numbers.

Sparse, fake and meta tensors have no numbers that can be read: `data_ptr` raises, or is 0 for all
of them. The place of such a one is that of the object itself.
"""

import torch


def storage_of(tensor: torch.Tensor) -> int:
    """Return the place of all numbers that a tensor is a view of."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def start_of(tensor: torch.Tensor) -> int:
    """Return the place of the first number of a tensor: parts of one table are told apart."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)
