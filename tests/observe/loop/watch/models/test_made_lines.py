"""Which line made a module, an optimizer or a loader, and has set a weight."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loop.lines import line_of
from trainguard.events.origin import Origin
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models import made_lines


class Block(nn.Module):
    """A layer, and a smaller block of the same class."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.smaller = Block(size - 1) if size else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer, and the smaller block."""
        return self.smaller(self.layer(x))


class LastBlock(Block):
    """One whose class calls the `__init__` of another one of the user's."""

    def __init__(self) -> None:
        super().__init__(0)


def train() -> None:
    """Train in a function, so that all is gone by the end of the run."""
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 4))
    loader = DataLoader(data, 8)
    model = nn.Sequential(
        Block(1),
        LastBlock(),
    )
    nn.init.constant_(model[0].layer.weight, 0.1)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD([*model.parameters(), *twin.parameters()], lr=0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        mse_loss(model(inputs) + twin(inputs), targets).backward()
        optimizer.step()


def origins() -> dict[str, str]:
    """Return what is told of the training."""
    with Recorder("x") as recorder:
        train()
    assert "faults" not in recorder.trace.conditions
    return {event.name: event.source for event in recorder.trace if isinstance(event, Origin)}


def test_lines_outside_of_the_class() -> None:
    """Of a block that a block of its own class makes, the line in that; of a copy nothing."""
    found = origins()
    assert found == {
        "SGD": line_of("torch.optim.SGD", train),
        "backward": line_of(".backward()", train),
        "loader": line_of("DataLoader(", train),
        "Sequential": line_of("nn.Sequential(", train),
        "Sequential.0": line_of("Block(1)", train),
        "Sequential.0.layer": line_of("nn.Linear", Block),
        "Sequential.0.layer.weight": line_of("constant_", train),
        "Sequential.0.smaller": line_of("Block(size - 1)", Block),
        "Sequential.0.smaller.layer": line_of("nn.Linear", Block),
        "Sequential.0.smaller.smaller": line_of("Block(size - 1)", Block),
        "Sequential.1": line_of("LastBlock()", train),
        "Sequential.1.layer": line_of("nn.Linear", Block),
        "Sequential.1.smaller": line_of("Block(size - 1)", Block),
    }


def test_what_torch_has_is_put_back() -> None:
    """The classes make things as they did, once the run is over."""
    kinds = (nn.Module, torch.optim.Optimizer, DataLoader)
    before = [kind.__init__ for kind in kinds]
    origins()
    assert [kind.__init__ for kind in kinds] == before


def test_more_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone makes room; where most is still there, nothing more is taken down."""
    monkeypatch.setattr(made_lines, "_MOST", 4)
    with Recorder("x") as recorder:
        lines = recorder.watcher(made_lines.MadeLines)
        for _ in range(9):
            last = nn.Identity()
        assert lines.find_line(last)
        kept = [nn.Identity() for _ in range(9)]
        assert [bool(lines.find_line(each)) for each in kept[-3:]] == [False] * 3
    assert "faults" not in recorder.trace.conditions
