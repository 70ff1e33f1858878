"""Frozen weights that evaluations change, and how they come back."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Change = Callable[[torch.Tensor, torch.Tensor], object]


def found(before: Change, after: Change, *, frozen: bool = True) -> list[tuple[float, float]]:
    """Train a head on a frozen layer that is changed for evaluations; return what is told."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1))
    model[0].requires_grad_(requires_grad=not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with Recorder("x") as recorder, torch.no_grad():
        for step in range(12):
            model.train()
            with torch.enable_grad():
                model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if step % 3 == 2:
                change, weight = torch.randn(5, 6), model[0].weight.data
                before(weight, change)
                model.eval()
                model(torch.randn(8, 6))
                after(weight, change)
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "merged"]
    return [(probe.measured, probe.reference) for probe in probes]


def test_what_is_left_is_told() -> None:
    """Of each evaluation but the last one, after which nothing learned."""
    merge, undo = (lambda w, c: w.add_(c, alpha=4)), (lambda w, c: w.sub_(c))
    assert found(merge, undo) == [(3.0, 3.0)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda w, c: w.add_(c), lambda w, c: w.sub_(c)),
        (lambda w, c: w.add_(c), lambda w, c: None),
        (lambda w, c: None, lambda w, c: None),
        (lambda w, c: None, lambda w, c: w.add_(c)),
    ],
    ids=["taken out", "kept", "untouched", "changed afterwards"],
)
def test_what_is_not(before: Change, after: Change) -> None:
    """Weights come back, stay as in the evaluation, or are changed for other reasons."""
    assert found(before, after) == []


def test_what_learns_is_another_matter() -> None:
    """Steps move it between two evaluations."""
    assert found(lambda w, c: w.add_(c), lambda w, c: w.zero_(), frozen=False) == []
