"""Modules that no gradient reaches though an output depends on them, in runs that load weights."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder


class Cut(nn.Module):
    """A head over an encoder whose output is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        """Return what the head makes of the encoder."""
        return self.head(torch.relu(self.encoder(x)).detach())


def found(load=lambda net: None) -> list[str]:
    """Train for some steps after something was loaded, and return the modules that are told of."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = Cut()
        load(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(16):
            optimizer.zero_grad()
            (net(torch.randn(32, 8)) - 1).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [
        e.label.rpartition(".")[2] for e in recorder.trace if getattr(e, "probe", "") == "detached"
    ]


def load_head(net: Cut) -> None:
    """Load the head alone."""
    net.head.load_state_dict({k: torch.randn_like(v) for k, v in net.head.state_dict().items()})


def load_all(net: Cut) -> None:
    """Load what was learned elsewhere, which is not spread as torch draws it."""
    net.load_state_dict({k: torch.randn_like(v) for k, v in net.state_dict().items()})


@pytest.mark.parametrize(
    ("load", "expected"),
    [(lambda net: None, ["encoder"]), (load_head, ["encoder"]), (load_all, [])],
    ids=["nothing", "the head", "all"],
)
def test_what_was_loaded_may_be_meant_to_stay(load, expected) -> None:
    """What torch has drawn is to learn, whatever else was loaded."""
    assert found(load) == expected


def test_a_library_that_could_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported by others too; layers that are new are to learn."""
    monkeypatch.setitem(sys.modules, "safetensors", ModuleType("safetensors"))
    assert found() == ["encoder"]
    assert found(lambda net: nn.init.normal_(net.encoder.weight)) == []
