"""Which of the values that a logger is given are numbers, and how exact they are."""

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.observe.loop.watch.said.loggers import number_of, rounding_of

NUMBERS = {
    "float": (0.25, 0.25),
    "int": (3, 3.0),
    "bool": (True, None),
    "word": ("0.5", None),
    "none": (None, None),
    "numpy": (np.float16(0.5), 0.5),
    "numpy int": (np.int64(7), 7.0),
    "array": (np.array([2.0]), 2.0),
    "long array": (np.ones(2), None),
    "array of words": (np.array(["a"]), None),
    "huge": (10**400, None),
    "complex": (1j, None),
    "tensor": (torch.tensor([[1.5]]), 1.5),
    "with graph": (nn.Parameter(torch.tensor(0.5)) * 3, 1.5),
    "half": (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    "long tensor": (torch.ones(2), None),
    "complex tensor": (torch.tensor(1j), None),
    "meta": (torch.tensor(1.0, device="meta"), None),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_only_numbers_are_taken(case) -> None:
    """Numbers and tensors of one element become floats, everything else is passed over."""
    value, number = NUMBERS[case]
    assert number_of(value) == number


def test_a_number_under_a_transformation_is_passed_over() -> None:
    """Inside torch.func.vmap a tensor has no value that could be read."""
    seen = []
    torch.func.vmap(lambda x: seen.append(number_of(x)) or x)(torch.ones(3))
    assert seen == [None]


@pytest.mark.parametrize(
    ("value", "rounding"),
    [
        (0.123456789, 0.0),
        (0.123, 0.0005),
        (12.5, 0.05),
        (2.3026, 0.00005),
        (5e-5, 0.0),
        (0.0, 0.00005),
        (float("nan"), 0.0),
        (float("inf"), 0.0),
        (1e300, 0.00005),
    ],
)
def test_a_float_with_few_decimals_may_be_rounded(value, rounding) -> None:
    """Frameworks round to four decimals before they log."""
    assert rounding_of(value) == pytest.approx(rounding)
