"""Evaluations whose inputs have another scale than those of the training."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


@pytest.mark.parametrize(("scale", "shift", "steps"), [(9.0, 20.0, [80]), (1.0, 0.0, [])])
def test_an_evaluation_without_a_loss(scale: float, shift: float, steps: list[int]) -> None:
    """The classes that a loader serves with an input tell how wrong a model is about it."""
    torch.manual_seed(0)
    points = torch.randn(320, 4)
    classes = (points[:, 0] > 0).long()
    training = DataLoader(TensorDataset(points[:160], classes[:160]), 8, shuffle=True)
    held_out = DataLoader(TensorDataset(points[160:] * scale + shift, classes[160:]), 40)
    with Recorder("x") as recorder:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(4):
            for inputs, targets in training:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            with torch.no_grad():
                for inputs, _ in held_out:
                    model(inputs)
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    assert [p.step for p in probes if p.probe == "scale"] == steps


@pytest.mark.parametrize(
    ("scale", "shift", "evaluations", "told"),
    [(1.0, 6.0, 4, [80]), (9.0, 0.0, 4, [80]), (1.0, 0.0, 4, []), (9.0, 3.0, 1, [])],
    ids=["aside", "wider", "alike", "once"],
)
def test_an_evaluation_of_which_nothing_is_known(
    scale: float, shift: float, evaluations: int, told: list[int]
) -> None:
    """Where no loss and no target is known, evaluations in another scale are told without one."""
    torch.manual_seed(0)
    points = torch.randn(320, 4)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with Recorder("x") as recorder:
        for epoch in range(4):
            for rows in torch.randperm(160).split(8):
                optimizer.zero_grad()
                given = points[rows]
                nn.functional.cross_entropy(model(given), (given[:, 0] > 0).long()).backward()
                optimizer.step()
            if epoch >= 4 - evaluations:
                with torch.no_grad():
                    model(points[160:] * scale + shift)
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    found = [probe for probe in probes if probe.probe == "scale"]
    assert [probe.step for probe in found] == told
    assert all(probe.label.endswith(" - -") for probe in found)
