"""Modules that no gradient reaches though an output depends on them, in runs that load weights."""

import inspect
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from trainguard.events.origin import Origin
from trainguard.events.trace import Trace
from trainguard.observe.loop.recorder import Recorder


class Cut(nn.Module):
    """A head over an encoder whose output is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        """Return what the head makes of the encoder."""
        return self.head(torch.relu(self.encoder(x)).detach())


class Outer(nn.Module):
    """A model that has one of these as a part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Cut())

    def forward(self, x):
        """Return what that makes."""
        return self.inner(x)


def record(load=lambda net: None, kind=Cut) -> Trace:
    """Train for some steps after something was loaded."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = kind()
        load(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(16):
            optimizer.zero_grad()
            (net(torch.randn(32, 8)) - 1).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    return recorder.trace


def found(load=lambda net: None) -> list[str]:
    """Return the modules that are told of, where something was loaded before."""
    trace = record(load)
    return [e.label.rpartition(".")[2] for e in trace if getattr(e, "probe", "") == "detached"]


@pytest.mark.parametrize(("kind", "name"), [(Cut, "Cut"), (Outer, "Outer.inner.0")])
def test_the_line_that_cuts_the_graph_is_told(kind, name) -> None:
    """That of the forward of the module around, wherever that is."""
    lines, first = inspect.getsourcelines(Cut.forward)
    row = first + next(n for n, each in enumerate(lines) if ".detach()" in each)
    told = [e for e in record(kind=kind) if isinstance(e, Origin) and e.name.startswith("cut ")]
    assert told == [Origin(name=f"cut {name}.encoder", source=f"{__file__}:{row}")]


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
