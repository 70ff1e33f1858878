"""Evaluations whose inputs are scaled by their own numbers."""

import pytest
import torch
from torch import nn

from trainguard.observe.loop.recorder import Recorder


def standardised(rows: torch.Tensor, by: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Return rows in the units of others."""
    return (rows - by.mean(axes, keepdim=True)) / by.std(axes, keepdim=True)


def ranged(rows: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Return rows in the range of others."""
    return (rows - by.amin(0)) / (by.amax(0) - by.amin(0))


def found(inputs: torch.Tensor, held_out: torch.Tensor, drop: int = 0) -> list[str]:
    """Return how the inputs of an evaluation are scaled, after an epoch that leaves out some."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with Recorder("x") as recorder:
        for rows in torch.randperm(len(inputs))[drop:].split(32):
            optimizer.zero_grad()
            net(inputs[rows]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for rows in held_out.split(32):
                net(rows)
    assert recorder.trace.conditions.get("faults", ()) == ()
    events = [e for e in recorder.trace if getattr(e, "probe", "") == "own scale"]
    return [event.label.rsplit(" ", 1)[1] for event in events]


SHAPES = [((6,), (0,)), ((3, 10, 10), (0, 2, 3)), ((20, 4), (0, 1)), ((12, 12), (0, 1, 2))]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("drop", [0, 31])
def test_their_own_mean(shape: tuple[int, ...], axes: tuple[int, ...], drop: int) -> None:
    """By column, by channel, or of all numbers; an epoch may leave out some rows."""
    rows = 3 + 2 * torch.randn(400, *shape)
    inputs, held_out = rows[:320], rows[320:]
    own = standardised(held_out, held_out, axes)
    kind = "column" if axes == (0,) else "number" if len(axes) == len(shape) + 1 else "channel"
    assert found(standardised(inputs, inputs, axes), own, drop) == [kind]
    assert found(standardised(inputs, inputs, axes), standardised(held_out, inputs, axes)) == []


def test_their_own_range() -> None:
    """Columns from 0 to 1, where no number comes twice; of the training's range they fall short."""
    rows = torch.cat([torch.randn(400, 4), torch.randint(2, (400, 2)).float()], 1)
    inputs, held_out = rows[:320], rows[320:]
    assert found(ranged(inputs, inputs), ranged(held_out, held_out)) == ["range"]
    assert found(ranged(inputs, inputs), ranged(held_out, inputs)) == []


def test_a_range_that_is_given() -> None:
    """Shares in percent reach both ends by themselves, and so do bits."""
    steps = torch.randint(11, (400, 4)) / 10
    assert found(steps[:320], steps[320:]) == []


def test_each_sample_by_itself() -> None:
    """That of each row is known when it comes; so it is in the evaluation."""
    rows = 3 + 2 * torch.randn(400, 2, 50)
    each = standardised(rows, rows, (2,)).mul(50**0.5 / 49**0.5)
    assert found(each[:320], each[320:]) == []


def test_another_scale_than_the_training() -> None:
    """Where the training is not scaled that is said elsewhere, by what it does."""
    rows = 3 + 2 * torch.randn(400, 6)
    assert found(rows[:320], standardised(rows[320:], rows[320:], (0,))) == []


def test_the_same_rows_again() -> None:
    """What was trained on is evaluated in its own scale."""
    rows = torch.randn(400, 6)
    rows = standardised(rows, rows, (0,))
    assert found(rows, rows[torch.randperm(400)]) == []
