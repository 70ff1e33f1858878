"""Ends of rows: what is left out as padding is."""

import pytest
import torch

from trainguard.observe.loop.watch.losses.row_ends import RowEnds, are_ended, are_told, find_padding


@pytest.mark.parametrize(
    ("rows", "labels", "left_out"),
    [
        ([[1, 2, 3, 0], [1, 2, 0, 0]], [[1, 2, 3, 9], [1, 2, 9, 9]], 1),
        ([[1, 2, 3, 0], [1, 2, 0, 0]], [[9, 2, 3, 9], [9, 2, 9, 9]], 1),  # a prompt is left out too
        ([[1, 2, 3, 0], [1, 2, 0, 0]], [[1, 2, 3, 0], [1, 2, 0, 9]], 0),  # ends are learned
        ([[1, 2, 3, 4], [1, 2, 0, 0]], [[1, 2, 3, 4], [1, 2, 9, 9]], 0),  # none in the longest
        ([[1, 2, 3, 0], [1, 2, 3, 0]], [[1, 2, 3, 9], [1, 2, 3, 9]], 0),  # nothing is padded
        ([[1, 2, 3, 0], [1, 2, 0, 0]], [[1, 9, 9, 9], [1, 9, 9, 9]], 0),  # answers are not learned
        ([[1, 2, 3, 0], [0, 0, 0, 0]], [[1, 2, 3, 9], [9, 9, 9, 9]], 0),  # an empty row
    ],
)
@pytest.mark.parametrize("is_shifted", [False, True])
def test_ends(rows, labels, left_out, is_shifted) -> None:
    """What ends all rows and is never a target counts, whether the last place is cut off or not."""
    ends = RowEnds("x.py:1")
    after = torch.tensor(labels)[:, 1:]
    target = after if is_shifted else torch.nn.functional.pad(after, (0, 1), value=9)
    ends.count(torch.tensor(rows), target.reshape(-1), 9)
    assert ends.left_out == left_out


@pytest.mark.parametrize(
    ("vocabulary", "certain"), [({"<pad>": 0, "<eos>": 0}, True), ({"<pad>": 0, "<eos>": 1}, False)]
)
def test_a_name(vocabulary, certain) -> None:
    """Where all rows are as wide, a number that is called an end tells them."""
    ends = RowEnds("x.py:1")
    rows, target = torch.tensor([[1, 2, 3, 0], [1, 2, 0, 0]]), torch.tensor([2, 3, 9, 2, 9, 9])
    for _ in range(3):
        ends.count(rows, target, 9)
    assert vocabulary["<pad>"] == 0
    assert (ends.token, ends.are_left_out) == (0, certain)


@pytest.mark.parametrize(("mask", "certain"), [([[1] * 4, [1, 1, 1, 0]], True), (None, False)])
def test_a_mask(mask, certain) -> None:
    """Where all rows are as wide, it tells which of them have an end."""
    ends = RowEnds("x.py:1")
    rows, target = torch.tensor([[1, 2, 3, 0], [1, 2, 0, 0]]), torch.tensor([2, 3, 9, 2, 9, 9])
    for _ in range(3):
        ends.count(rows, target, 9, [] if mask is None else [rows, torch.tensor(mask)])
    assert ends.left_out == 3
    assert ends.are_left_out is certain


ENDS = torch.tensor([0, 2, 3])
REAL = torch.arange(5) < (5 - ENDS)[:, None]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([5 - ENDS], True),
        ([(5 - ENDS).float()], True),
        ([torch.randn(3, 5), REAL], True),
        ([REAL.float()], True),
        ([~REAL], True),
        ([ENDS], False),
        ([5 - ENDS + torch.tensor([0, 0, 1])], False),
        ([10 - ENDS], False),  # they cannot be lengths of rows of five
        ([REAL * 2.0], False),  # numbers, not a mask
        ([REAL.flip(1)], False),
        ([REAL[:2]], False),
        ([], False),
    ],
)
def test_lengths_and_masks_tell_ends(given: list[torch.Tensor], told: bool) -> None:
    """Of all rows, and whichever of both sides a mask marks."""
    assert are_told(ENDS, 5, given) == told


FOUR = [[5, 6, 1, 0], [5, 1, 0, 0], [7, 1, 0, 0], [8, 9, 1, 0]]


@pytest.mark.parametrize(
    ("rows", "ended"),
    [
        (FOUR, True),
        ([*FOUR, [5, 6, 7, 8]], True),  # it fills its row
        (FOUR[:3], False),
        ([*FOUR[:3], [8, 9, 7, 0]], False),
        ([*FOUR[:3], [1, 9, 1, 0]], False),  # it comes at the beginning too
        ([*FOUR[:3], [0, 0, 0, 0]], False),
    ],
)
def test_one_token_tells_the_end_of_each_row(rows: list[list[int]], ended: bool) -> None:
    """Before the padding, and nowhere else, in four rows at least."""
    table = torch.tensor(rows)
    assert are_ended(table, table == 0) == ended


def test_padding_is_what_it_is_said_to_be_or_ends_most_rows() -> None:
    """Whatever else comes at ends."""
    rows = torch.tensor([[5, 6, 0], [5, 0, 0], [7, 8, 9]])
    assert (find_padding(rows), find_padding(rows, 9)) == (0, 9)
