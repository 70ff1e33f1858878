"""Losses with a graph that nothing reads, and of which only the last one is left."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Step = Callable[[nn.Module], None]


def looks(step: Step) -> list[tuple[str, str, float, float]]:
    """Make four steps, and return what was seen: its kind, a variable, how often, of how many."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            step(model)
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe)]
    kinds = "lost loss", "last loss"
    return [(p.probe, p.label, p.measured, p.reference) for p in found if p.probe in kinds]


def draw() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch and its targets."""
    return torch.randn(8, 3), torch.randn(8, 2)


def overwritten(model: nn.Module) -> None:
    """Drop the first of two terms."""
    rows, wanted = draw()
    loss = F.mse_loss(model(rows), wanted)
    loss = F.l1_loss(model(rows), wanted)
    loss.backward()


def unread(model: nn.Module) -> None:
    """Forget a term in a variable."""
    rows, wanted = draw()
    term = nn.MSELoss()(model(rows), wanted)  # noqa: F841 that is the mistake
    loss = F.l1_loss(model(rows), wanted)
    loss.backward()


def added(model: nn.Module) -> None:
    """Use both, in one variable."""
    rows, wanted = draw()
    loss = F.mse_loss(model(rows), wanted)
    loss = loss + F.l1_loss(model(rows), wanted)
    loss.backward()


def replaced(model: nn.Module) -> None:
    """Choose another loss now and then."""
    rows, wanted = draw()
    loss = F.mse_loss(model(rows), wanted)
    if len(rows) > 4:
        loss = F.l1_loss(model(rows), wanted)
    loss.backward()


def by_name(model: nn.Module) -> None:
    """Read a variable through its name."""
    rows, wanted = draw()
    term = F.mse_loss(model(rows), wanted)
    loss = F.l1_loss(model(rows), wanted)
    (loss + locals()["term"]).backward()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (overwritten, [("lost loss", "loss", 4.0, 1.0)]),
        (unread, [("lost loss", "term", 4.0, 0.0)]),
        (added, []),
        (replaced, []),
        (by_name, []),
    ],
)
def test_losses_that_nothing_reads_are_told(step: Step, expected: list) -> None:
    """Those that another value replaces in any case, and those that no code can read."""
    assert looks(step) == expected


def last(model: nn.Module, *, same: bool = False, keep: bool = False, ask: bool = False) -> None:
    """Compute five losses, and go backward with the last one alone."""
    batch, kept = draw(), []
    for _ in range(5):
        rows, wanted = batch if same else draw()
        loss = F.mse_loss(model(rows), wanted)
        kept += [loss] if keep else []
        if ask:
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    loss.backward()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [("last loss", "", 4.0, 4.0)]),
        ({"same": True}, []),
        ({"keep": True}, []),
        ({"ask": True}, []),
    ],
    ids=["batches", "one batch", "kept", "gradients by themselves"],
)
def test_losses_of_which_the_last_one_is_left(more: dict, expected: list) -> None:
    """Of other targets each time, where nothing else could have come of them."""
    assert looks(lambda model: last(model, **more)) == expected
