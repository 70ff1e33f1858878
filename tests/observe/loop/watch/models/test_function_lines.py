"""Which line of a model calls a function, or makes the module that does."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.function_lines import (
    find_function_line,
    find_last_line,
    find_line_near,
)
from trainguard.observe.tools.user_line import find_method_line


class Soft(nn.Module):
    """A model with one softmax, and two relus."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return probabilities."""
        x = torch.relu(self.first(x))
        x = torch.relu(x)
        return self.last(x).softmax(1)


class Logged(Soft):
    """A model that returns logarithms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logarithms of probabilities."""
        return self.last(x).log_softmax(1)


def stack(*last: nn.Module) -> nn.Module:
    """Return layers with a softmax between them."""
    return nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 3), *last)


def line_of(part: object, code: str) -> int:
    """Return the line of this file in which a function or class has some code."""
    lines, first = inspect.getsourcelines(part)  # type: ignore[arg-type]
    return next(number for number, line in enumerate(lines, first) if code in line)


SOFTMAX, LOGARITHMS = line_of(Soft, ".softmax("), line_of(Logged, "return self.last")
STACKED, FORWARD = line_of(stack, "nn.Softmax"), line_of(Soft, "def forward")


def found(make: Callable[[], nn.Module], function: str, *, last: bool = False) -> int:
    """Return the line of this file that is found for a function; 0 for none."""
    with Recorder("x") as recorder:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cross_entropy(model(torch.randn(4, 4)), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
        find = find_last_line if last else find_function_line
        line = find(recorder, function)
    assert "faults" not in recorder.trace.conditions
    return int(line.rpartition(":")[2] or 0)


@pytest.mark.parametrize(
    ("make", "function", "line"),
    [
        (Soft, "softmax", SOFTMAX),
        (Soft, "relu", 0),  # there are two lines
        (Soft, "tanh", 0),
        (stack, "softmax", STACKED),
        (lambda: stack(nn.Softmax(1)), "softmax", 0),  # made by two lines
        (stack, "log_softmax", 0),
        (Logged, "softmax", 0),
        (Logged, "log_softmax", LOGARITHMS),
    ],
)
def test_the_only_line(make: Callable[[], nn.Module], function: str, line: int) -> None:
    """The line that calls it, or makes its module, if no other one does."""
    assert found(make, function) == line


def test_the_last_module() -> None:
    """What a model ends with is told by the line that made it."""
    ending = found(lambda: stack(nn.Softmax(1)), "softmax", last=True)
    assert ending > found(stack, "softmax", last=True) == STACKED
    assert found(Soft, "softmax", last=True) == SOFTMAX


def test_lines_of_the_same_file() -> None:
    """The only one that calls a function, whoever does."""
    here = f"{__file__}:1"
    assert find_line_near(here, "arange_nowhere" + "_else") == ""
    assert find_line_near(here, "find_line_near") == ""  # several
    assert find_line_near(here, "relu") == ""
    assert find_line_near(here, "log_softmax").endswith(f"test_function_lines.py:{LOGARITHMS}")
    assert find_line_near("", "softmax") == ""


def test_methods_of_the_users() -> None:
    """And none of those that are torch's, or of what has none."""
    assert find_method_line(Soft(), "forward").endswith(f"test_function_lines.py:{FORWARD}")
    assert find_method_line(nn.Linear(1, 1), "forward") == find_method_line(3, "forward") == ""
