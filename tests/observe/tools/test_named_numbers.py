"""Numbers in the variables of running functions."""

import numpy as np
import pytest
import torch

from trainguard.observe.tools.named_numbers import find_numbers


def named(value, least: int = 4, most: int = 64) -> dict[str, list]:
    """Return what is found of a variable, as lists."""
    rewards = value  # noqa: F841 it is looked for
    return {name: table.tolist() for name, table in find_numbers(least, most) if name == "rewards"}


@pytest.mark.parametrize(
    "value",
    [
        [[1.0, 2.0], [3.0, 4.0]],
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])],
        [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
        [torch.tensor([1, 2]), np.array([3.0, 4.0])],
    ],
    ids=["lists", "tensor", "list of tensors", "list of arrays", "both"],
)
def test_tables(value) -> None:
    """Those of one piece, and those that are kept step by step; lists of lists are no table."""
    found = named(value)
    assert found == ({} if isinstance(value[0], list) else {"rewards": [[1.0, 2.0], [3.0, 4.0]]})


@pytest.mark.parametrize(
    "value",
    [
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2), "a"],
        [torch.ones(40), torch.ones(40)],
        [torch.ones(2)],
        [torch.ones(2), torch.tensor([1.0, float("nan")])],
        [torch.ones(2, dtype=torch.complex64)] * 2,
        [object()] * 4,
    ],
    ids=["shapes", "text", "large", "small", "nan", "complex", "objects"],
)
def test_what_is_no_table(value) -> None:
    """Other things, other sizes, and what is not finite."""
    assert named(value) == {}
