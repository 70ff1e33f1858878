"""What is taken for the order in which a module has put its samples."""

import pytest
import torch

from trainguard.observe.loop.watch.samples.row_order import tells_an_order

SCORES = torch.randn(3, 2)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ((SCORES, torch.tensor([2, 0, 1])), True),
        ({"scores": SCORES, "order": torch.tensor([0, 1, 2])}, True),
        (torch.tensor([2, 0, 1]), False),
        ((SCORES, torch.tensor([2, 0, 2])), False),
        ((SCORES, torch.tensor([2.0, 0.0, 1.0])), False),
        ((SCORES, torch.tensor([0])), False),
        (None, False),
    ],
    ids=["beside scores", "by name", "alone", "classes", "numbers", "one sample", "nothing"],
)
def test_orders(output: object, expected: bool) -> None:
    """Each place once, as whole numbers, beside something else."""
    assert tells_an_order(output) is expected
