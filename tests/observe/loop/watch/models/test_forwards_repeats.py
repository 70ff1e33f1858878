"""Passes of an evaluation over one and the same input."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from trainguard.events.loop import Evaluation
from trainguard.observe.loop.recorder import Recorder


def test_passes_over_one_input_are_counted() -> None:
    """One after the other, as samples of a model with dropout are taken; not over several."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for step in range(2):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for rows in [x] * 5 if step else x.split(2):
                    model(rows)
    assert "faults" not in recorder.trace.conditions
    found = [event for event in recorder.trace if isinstance(event, Evaluation)]
    assert [(event.passes, event.repeats) for event in found] == [(4, 0), (5, 4)]
