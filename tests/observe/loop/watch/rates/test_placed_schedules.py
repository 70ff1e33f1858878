"""What is seen of schedules that are told where they go on."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.observe.loop.trainings import batches, network
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

EPOCH = 10  # steps


def run(optimizer: Any, model: Any, scheduler: Any, steps: int, every: int = 1) -> None:
    """Make some steps, and advance the schedule after each, or after some of them."""
    for number, (inputs, target) in enumerate(batches(steps)):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
        if (number + 1) % every == 0:
            scheduler.step()


def found(
    place: int, *, kind: Any = torch.optim.Adam, every: int = 1, longer: int = 1
) -> list[Probe]:
    """Train for 60 steps, go on with a new optimizer and schedule; return what was found."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = network()
        whole = 120 // every
        optimizer = kind(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda call: 1 - call / whole)
        run(optimizer, model, scheduler, 60, every)
        state = copy.deepcopy(optimizer.state_dict())
        optimizer = kind(model.parameters(), lr=0.1)
        optimizer.load_state_dict(state)
        scheduler = lr_scheduler.LambdaLR(
            optimizer, lambda call: 1 - call / (longer * whole), last_epoch=place
        )
        run(optimizer, model, scheduler, 40, every)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "resumed place"]


def test_a_place_in_epochs_is_found() -> None:
    """Where each step advances the schedule, and the rate leaps back."""
    (probe,) = found(60 // EPOCH - 1)
    assert (probe.measured, probe.reference, probe.label) == (6.0, 60.0, "LambdaLR")
    assert "test_placed_schedules.py:" in probe.source


@pytest.mark.parametrize(
    "how",
    [
        {"place": 59},
        {"place": 60},
        {"place": 5, "every": EPOCH},
        {"place": 59, "longer": 3},
        {"place": 5, "every": EPOCH, "longer": 3},
        {"place": 5, "kind": torch.optim.SGD},
    ],
    ids=[
        "same",
        "one further",
        "by the epoch",
        "another plan",
        "another in epochs",
        "steps unknown",
    ],
)
def test_places_that_fit_or_say_nothing(how: dict[str, Any]) -> None:
    """A schedule that is told what it counts by, in steps or epochs, may have another plan."""
    assert found(**how) == []
