"""Where the numbers of tensors lie."""

import pytest
import torch

from trainguard.observe.tools.local_values import start_of, storage_of

_TABLE = torch.arange(6.0).reshape(3, 2)


def test_views_of_one_table() -> None:
    """A view has the storage of its table; where it starts depends on what it shows."""
    assert storage_of(_TABLE[1:]) == storage_of(_TABLE)
    assert start_of(_TABLE[:2]) == start_of(_TABLE) != start_of(_TABLE[1:])


@pytest.mark.parametrize(
    "make",
    [
        _TABLE.to_sparse,
        lambda: torch.nested.nested_tensor([_TABLE, _TABLE], layout=torch.jagged),
        lambda: torch.ones(2, device="meta"),
        lambda: torch.ones(0),
    ],
    ids=["sparse", "nested", "meta", "empty"],
)
def test_tensors_that_lie_nowhere(make: object) -> None:
    """Two tensors without readable numbers have two places, and each its own twice."""
    assert callable(make)
    one, other = make(), make()
    for place in (start_of, storage_of):
        assert place(one) == place(one) != place(other)
