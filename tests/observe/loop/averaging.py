"""What tests of averages share: a recording's looks at copies, and a loop that updates them."""

import torch
from torch.nn import functional as F

from tests.observe.loop.trainings import batches
from trainguard.events.loop import Average
from trainguard.observe.loop.recorder import Recorder

# Of these tests alone: what others left in memory was drawn from theirs, and would be a copy.
SEED = 3_141_592


def looks(train, *arguments, **options) -> list[Average]:
    """Record a training and return the looks at its copies."""
    torch.manual_seed(SEED)
    with Recorder("x") as recorder:
        train(*arguments, **options)
    return [event for event in recorder.trace if isinstance(event, Average)]


def loop(model, update, steps: int = 20, *, rate: float = 1e-2, micro: int = 1) -> None:
    """Train a model, and call `update()` after each step of its optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for index, (inputs, target) in enumerate(batches(steps * micro)):
        F.mse_loss(model(inputs), target).backward()
        if index % micro == micro - 1:
            optimizer.step()
            optimizer.zero_grad()
            update()


@torch.no_grad()
def follow(average, model, decay: float) -> None:
    """Move an average a little toward its model."""
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.mul_(decay).add_(new, alpha=1 - decay)
