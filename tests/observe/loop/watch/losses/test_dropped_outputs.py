"""Dropout that comes last, and dropout that does not."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def looks(*layers: nn.Module, weight: torch.Tensor | None = None) -> list[tuple[str, float, float]]:
    """Make four steps with some layers after the first, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            output = model(torch.randn(8, 3))
            output = output if weight is None else output * weight
            optimizer.zero_grad()
            nn.functional.cross_entropy(output, torch.randint(6, (8,))).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "dropped"]
    return [(probe.label, probe.measured, probe.reference) for probe in found]


@pytest.mark.parametrize(
    "layers",
    [(nn.Dropout(0.4),), (nn.Dropout(0.4), nn.Flatten())],
    ids=["last", "but for a shape"],
)
def test_dropout_before_the_loss_is_told(layers: tuple[nn.Module, ...]) -> None:
    """Also where its shape is changed after it."""
    assert looks(*layers) == [("cross_entropy", 4.0, 4.0)]


@pytest.mark.parametrize(
    ("layers", "weight"),
    [
        ((nn.Dropout(0.4), nn.Linear(6, 6)), None),
        ((nn.Dropout(0.0),), None),
        ((), torch.linspace(0.5, 2, 48).reshape(8, 6)),
        ((), (torch.arange(48) % 2).float().reshape(8, 6)),
    ],
    ids=["before a layer", "of nothing", "weights", "a mask"],
)
def test_other_outputs_are_left_alone(
    layers: tuple[nn.Module, ...], weight: torch.Tensor | None
) -> None:
    """Dropout before a layer, and products with other numbers."""
    assert looks(*layers, weight=weight) == []
