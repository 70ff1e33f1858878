"""Lists of the numbers of samples that a sampler keeps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainguard.observe.tools.index_buckets import find_buckets, find_short_ones

_LISTS = [[0, 1, 2], [3, 4], [5]]


@pytest.mark.parametrize(
    "kept",
    [
        _LISTS,
        dict(enumerate(_LISTS)),
        tuple(map(tuple, _LISTS)),
        [np.array(each) for each in _LISTS],
        [torch.tensor(each) for each in _LISTS],
    ],
)
def test_lists_that_stand_together(kept) -> None:
    """In a list, a tuple or a dictionary, as whatever holds whole numbers."""
    assert find_buckets(SimpleNamespace(size=3, lists=kept)) == _LISTS


@pytest.mark.parametrize(
    "kept",
    [
        _LISTS[:2],
        [[0, 1], [1, 2], [3]],
        [[0.5], [1.5], [2.5]],
        [[0], [1], "2"],
        [np.zeros((2, 2), int)] * 3,
        [0, 1, 2],
        None,
    ],
)
def test_what_is_no_such_thing(kept) -> None:
    """Two lists, numbers that come twice, other numbers, tables."""
    assert find_buckets(SimpleNamespace(lists=kept)) == []


def test_what_has_no_attributes() -> None:
    """There is nothing to be found."""
    assert find_buckets(5) == []


def test_lists_that_are_shorter_than_a_batch() -> None:
    """They are told where all that is never drawn from is short, and something is drawn."""
    assert list(find_short_ones(_LISTS, {0, 1}, 3)) == [[3, 4], [5]]
    assert list(find_short_ones(_LISTS, {0, 3, 5}, 3)) == []
    assert list(find_short_ones(_LISTS, {5}, 3)) == []
    assert list(find_short_ones([[0], []], set(), 3)) == []
