"""Arrays over tensors have their numbers, and leave their memory to the user."""

import numpy as np
import pytest
import torch

from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.fingerprint import checksums, fingerprint, hash_rows

DTYPES = (torch.float64, torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 6)], ids=str)
def test_an_array_has_the_numbers_of_its_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Of each dtype and shape, in the same memory."""
    tensor = torch.ones(shape).to(dtype)
    assert np.array_equal(array_of(tensor), tensor.numpy())
    assert np.shares_memory(array_of(tensor), tensor.numpy()) or not tensor.numel()


def test_what_is_lazily_negative_or_conjugate_is_read_as_it_is() -> None:
    """The memory of such a tensor has other numbers."""
    tensor = torch.randn(4, dtype=torch.complex64)
    assert np.array_equal(array_of(tensor.conj()), tensor.conj().resolve_conj().numpy())
    negative = tensor.conj().imag
    assert negative.is_neg()
    assert np.array_equal(array_of(negative), negative.resolve_neg().numpy())


def test_a_graph_is_no_obstacle() -> None:
    """A tensor that learns is read as others are."""
    assert array_of(torch.ones(3, requires_grad=True)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "kind", [torch.ones(3, device="meta"), torch.eye(3).to_sparse()], ids=["meta", "sparse"]
)
def test_what_has_no_plain_memory_is_refused(kind: torch.Tensor) -> None:
    """Such a tensor raises, and ends no process."""
    with pytest.raises((TypeError, RuntimeError)):
        array_of(kind)


@pytest.mark.parametrize("rows", [4, 4096])
def test_what_was_looked_at_can_still_be_resized(rows: int) -> None:
    """As sharded parameters are, and buffers for batches of several sizes."""
    tensor = torch.randn(rows, 32)
    checksums([tensor])
    fingerprint([tensor])
    hash_rows(tensor)
    assert tensor.untyped_storage().resizable()
    tensor.resize_(2 * rows, 32)
