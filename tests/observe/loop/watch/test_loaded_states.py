"""States that are loaded under the recorder, in every way that torch takes them."""

import pytest
import torch
from torch import nn

from trainguard.events.loop import Probe
from trainguard.observe.loop.recorder import Recorder


def test_a_state_may_be_given_by_its_name() -> None:
    """As `state_dict=`, which is what torch's own parameter is called."""
    net, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        net.load_state_dict(state_dict=other.state_dict(), strict=True)
        optimizer.load_state_dict(state_dict=optimizer.state_dict())
    assert torch.equal(net.weight, other.weight)
    assert recorder.trace.conditions.get("faults", ()) == ()


class Wrapped(nn.Module):
    """A layer under another name."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base


def build(*, frozen: bool, wrapped: bool = True, width: int = 4) -> nn.Sequential:
    """Return two layers, the first of them wrapped and frozen if that is wanted."""
    first = nn.Linear(width, width).requires_grad_(not frozen)
    return nn.Sequential(Wrapped(first) if wrapped else first, nn.Linear(4, 1))


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter:UserWarning")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (build(frozen=True), [(2.0, 2.0)]),
        (build(frozen=False), []),
        (build(frozen=True, wrapped=False), []),
        (build(frozen=True, width=5), []),
        (build(frozen=True).to("meta"), []),
    ],
    ids=["frozen", "trained", "same names", "another shape", "meta"],
)
def test_frozen_layers_that_a_wrapper_renamed(model: nn.Module, told: list) -> None:
    """They are told with the name in the state; what is learned, or is another layer, is not."""
    state = build(frozen=False, wrapped=False).state_dict()
    with Recorder("x") as recorder:
        model.load_state_dict(state, strict=False)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "renamed"]
    assert [(probe.measured, probe.reference) for probe in probes] == told
    assert recorder.trace.conditions.get("faults", ()) == ()
    if probes:
        assert probes[0].label == "Sequential has `0.base.weight`, the state `0.weight`"


def test_frozen_layers_that_had_it_before() -> None:
    """What was loaded before it was wrapped lacks nothing."""
    model = build(frozen=True, wrapped=False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model[0] = Wrapped(model[0])
    with Recorder("x") as recorder:
        model.load_state_dict(state, strict=False)
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "renamed"]
