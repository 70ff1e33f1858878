"""Which axis embeddings are normalised along before they are compared."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def views(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the similarities of two views that were normalised together."""
    both = normalize(torch.stack([a, b], dim=1), dim=axis)
    return both[:, 0] @ both[:, 1].T


WAYS = {
    "views": lambda a, b: views(a, b, 1),
    "views of features": lambda a, b: views(a, b, 2),
    "angles": lambda a, b: a.cos() @ a.sin().T + 0 * b.sum(),
    "batch": lambda a, b: normalize(a, dim=0) @ normalize(b, dim=0).T,
    "einsum": lambda a, b: torch.einsum("nk,mk->nm", normalize(a, dim=0), normalize(b, dim=0)),
    "by hand": lambda a, b: (a / a.norm(dim=0)) @ (a / a.norm(dim=0)).T + 0 * b.sum(),
    "scaled": lambda a, b: 3 * normalize(a, dim=0) @ (normalize(b, dim=0) / 0.2).T,
    "scaled by what learns": lambda a, b: (
        normalize(a, dim=0) @ (b.mean().exp() * normalize(b, dim=0)).T
    ),
    "tables": lambda a, b: (
        normalize(a.view(4, 3, 4), dim=1) @ (2 * normalize(b.view(4, 3, 4), dim=1)).mT
    ),
    "beside unit rows": lambda a, b: normalize(a, dim=0) @ normalize(b, dim=1).T,
    "standardised": lambda a, b: (
        normalize(a - a.mean(0), dim=0) @ normalize(b - b.mean(0), dim=0).T
    ),
    "whitened": lambda a, b: ((a - a.mean(0)) / a.std(0)) @ ((b - b.mean(0)) / b.std(0)).T,
    "unit rows of tables": lambda a, b: (
        normalize(a.view(4, 3, 4), dim=2) @ normalize(b.view(4, 3, 4), dim=2).mT
    ),
    "over the places of tables": lambda a, b: (
        normalize(a.view(4, 3, 4), dim=1).mT @ normalize(b.view(4, 3, 4), dim=1)
    ),
    "rows": lambda a, b: normalize(a, dim=1) @ normalize(b, dim=1).T,
    "over samples": lambda a, b: normalize(a, dim=0).T @ normalize(b, dim=0),
    "one side": lambda a, b: normalize(a, dim=0) @ b.T,
    "signs": lambda a, b: a.sign() @ b.sign().T,
    "right angles": lambda a, b: torch.linalg.qr(a)[0] @ torch.linalg.qr(a)[0].T + 0 * b.sum(),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_normalised(way) -> None:
    """Columns of one over the samples, on both sides, are told of."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            WAYS[way](
                model(torch.randn(12, 6)), model(torch.randn(12, 6))
            ).square().sum().backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    found = [(probe.label, probe.probe) for probe in probes if probe.probe.startswith("cosines")]
    told = {"views": ("two views of (12,4)", "cosines"), "tables": ("(4,3,4)", "cosines, perhaps")}
    told |= dict.fromkeys(("batch", "einsum", "by hand", "scaled"), ("(12,4)", "cosines"))
    told |= {"scaled by what learns": ("(12,4)", "cosines")}
    told |= {"beside unit rows": ("(12,4)", "cosines, perhaps")}
    assert found == ([told[way]] if way in told else [])


def test_after_another_training() -> None:
    """What is trained after something else is looked at as well."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model, other = nn.Linear(6, 4), nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        first = torch.optim.SGD(other.parameters(), lr=0.01)
        for _ in range(40):
            other(torch.randn(3, 2)).square().sum().backward()
            first.step()
        for _ in range(4):
            WAYS["batch"](model(torch.randn(12, 6)), model(torch.randn(12, 6))).sum().backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    found = [probe.measured for probe in probes if probe.probe == "cosines"]
    assert found == [2.0]
