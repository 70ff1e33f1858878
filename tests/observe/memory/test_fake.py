"""Tensors that have shapes and no bytes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors


class Scaled(nn.Module):
    """A layer with a constant in it that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = torch.tensor(3.0)


def test_a_copy_shares_its_mode() -> None:
    """An average is a copy of the model; with a mode of its own it would belong nowhere."""
    with fake_tensors() as mode:
        copied = copy.deepcopy(Scaled())
        assert copied.scale.fake_mode is copied.layer.weight.fake_mode is mode
        assert (copied.scale * copied.layer.weight).shape == (3, 3)


def test_counters_still_count() -> None:
    """A number that torch knows, such as an optimizer's counter, is known after it is changed."""
    with fake_tensors(), FakeAllocationLog().following():
        counter = torch.tensor(0.0)
        counter += 1
        torch._foreach_add_([counter], 2.0)
        assert counter.item() == 3.0


def written(tensor: torch.Tensor) -> torch.Tensor:
    """Write into a tensor in several ways, all of which return it."""
    returned = tensor.uniform_().mul_(2).add_(tensor).masked_fill_(tensor > 1, 0.0)
    torch._foreach_mul_([tensor], 2.0)
    with torch.no_grad():
        returned.copy_(torch.ones(1, dtype=torch.float64))
    return returned


def test_what_is_written_in_place_makes_nothing() -> None:
    """Such an operation returns its tensor, which has a new version, and makes no storage."""
    with fake_tensors(), FakeAllocationLog().following() as ledger:
        tensor = torch.empty(4, 3)
        version, before = tensor._version, len(ledger.entries)
        assert written(tensor) is tensor
        made = [entry.operation for entry in ledger.entries[before:]]
        assert made == ["gt", "ones"]
        assert tensor._version > version


RESIZED: list[tuple[Any, tuple[int, ...]]] = [
    (lambda t: t.resize_(5), (5,)),
    (lambda t: t.t_(), (3, 2)),
    (lambda t: t.squeeze_(), (2, 3)),
    (lambda t: t.set_(torch.empty(7)), (7,)),
    (lambda t: torch.add(torch.ones(4), 1, out=t.resize_(0)), (4,)),
]


@pytest.mark.parametrize(("change", "shape"), RESIZED)
def test_what_changes_a_shape_in_place_is_run(change: Any, shape: tuple[int, ...]) -> None:
    """The shape of a fake tensor changes as that of a real one does."""
    with fake_tensors(), FakeAllocationLog().following():
        fake = torch.empty(2, 3)
        change(fake)
        assert tuple(fake.shape) == shape
