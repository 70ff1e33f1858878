"""For how many epochs a script is made, and where a schedule was at its last advance."""

from types import SimpleNamespace

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from trainguard.events.loop import Scheduler
from trainguard.observe.loop.recorder import Recorder


def train(begin: dict | None = None, **variables) -> Scheduler:
    """Make three steps beside some variables, and return what is known of the scheduler."""
    config = SimpleNamespace(**variables)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with Recorder("x") as recorder:
        scheduler = CosineAnnealingLR(optimizer, 40)
        if begin:
            scheduler.load_state_dict(begin)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.square().sum().backward()
            optimizer.step()
            scheduler.step()
    assert config is not None
    assert "faults" not in recorder.trace.conditions
    return next(event for event in recorder.trace if isinstance(event, Scheduler))


def test_the_epochs_that_are_planned() -> None:
    """By their names alone: those of a warm-up are another matter, and so are no whole numbers."""
    assert train(num_epochs=7, epochs=5, steps=9).planned == (5, 7)
    assert train(warmup_epochs=2, epochs=5.0, epochs_done=True, epoch=3).planned == ()


def test_where_a_schedule_is() -> None:
    """After the advances of this run, and of the run that it goes on with."""
    begun = train()
    assert (begun.calls, begun.place) == (3, 3)
    parameter = torch.nn.Parameter(torch.ones(2))
    state = CosineAnnealingLR(torch.optim.SGD([parameter], lr=0.1), 40).state_dict()
    gone_on = train(state | {"last_epoch": 20})
    assert (gone_on.calls, gone_on.place) == (3, 23)
