"""The lines that cut out what is evaluated, and divide what comes of it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.observe.loop.lines import line_of
from trainguard.events.origin import Origin
from trainguard.observe.loop.recorder import Recorder


def measure(model: nn.Module, rows: torch.Tensor) -> float:
    """Return the mean loss over three batches."""
    total = 0.0
    with torch.no_grad():
        for batch in rows.split(8):
            total += float(mse_loss(model(batch), batch))
    return total / 3


def evaluate_parts(model: nn.Module, data: torch.Tensor) -> None:
    """Evaluate on the last rows, in two passes."""
    held_out = data[40:]
    for _ in range(2):
        measure(model, held_out)


def evaluate_all(model: nn.Module, data: torch.Tensor) -> None:
    """Evaluate on all rows."""
    measure(model, data)


def evaluate_two(model: nn.Module, data: torch.Tensor) -> None:
    """Evaluate on two parts, by one line each."""
    first = data[:32]
    second = data[32:]
    with torch.no_grad():
        half = mse_loss(model(first), first) / 2
        half += mse_loss(model(second), second) / 2


def origins(evaluate: Callable[[nn.Module, torch.Tensor], None]) -> dict[str, str]:
    """Train, evaluate, and return the lines that are told of evaluations."""
    torch.manual_seed(0)
    model, data = nn.Linear(4, 4), torch.randn(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            mse_loss(model(data), data).backward()
            optimizer.step()
            evaluate(model, data)
    assert "faults" not in recorder.trace.conditions
    told = {event.name: event.source for event in recorder.trace if isinstance(event, Origin)}
    return {name: line for name, line in told.items() if name.startswith("evaluat")}


CUT = line_of("data[40:]", evaluate_parts)
DIVIDED = line_of("total / 3", measure)


@pytest.mark.parametrize(
    ("evaluate", "expected"),
    [
        (evaluate_parts, {"evaluated samples": CUT, "evaluation divided": DIVIDED}),
        (evaluate_all, {"evaluation divided": DIVIDED}),
        (evaluate_two, {}),
    ],
)
def test_lines_around_an_evaluation(evaluate, expected: dict[str, str]) -> None:
    """Where there is one of them; of several it is not known which one is meant."""
    assert origins(evaluate) == expected
