"""Passes over one input are counted where their results are kept, however that is done."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

_PASSES = 8

Ask = Callable[[torch.Tensor], torch.Tensor]


class Functional(nn.Module):
    """A model that calls dropout as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return nn.functional.dropout(self.layer(x), 0.3, self.training)


def _in_a_list(ask: Ask) -> Any:
    """Keep probabilities in a list that has no name."""
    x = torch.randn(5, 4)
    return torch.stack([torch.sigmoid(ask(x)) for _ in range(_PASSES)])


def _as_numbers(ask: Ask) -> Any:
    """Keep single numbers, of tensors that are made anew."""
    return [ask(torch.ones(1, 4)).item() for _ in range(_PASSES)]


def _in_a_table(ask: Ask) -> Any:
    """Write arrays into rows of a table."""
    x, table = torch.randn(5, 4), np.zeros((_PASSES, 5, 1), np.float32)
    for place in range(_PASSES):
        table[place] = ask(x).numpy()
    return table


def _set_by_set(ask: Ask) -> Any:
    """Go through a set of two batches, again and again."""
    x = torch.randn(2, 5, 4)
    return [np.concatenate([ask(batch).numpy() for batch in x]) for _ in range(_PASSES)]


def _for_nothing(ask: Ask) -> Any:
    """Keep nothing but the last."""
    x = torch.randn(5, 4)
    for _ in range(_PASSES):
        last = ask(x)
    return last


def _of_several(ask: Ask) -> Any:
    """Keep what is said of several inputs beside the same one."""
    x = torch.randn(5, 4)
    return [ask(x) - ask(torch.randn(5, 4)) for _ in range(_PASSES)]


def _count(model: nn.Module, keep: Callable[[Ask], Any]) -> float:
    """Return how many passes were found in an evaluation after two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("run") as recorder:
        for _ in range(2):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            keep(model.eval())
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace.events if isinstance(e, Probe) and e.probe == "repeated"]
    return sum(probe.measured for probe in found)


@pytest.mark.parametrize("keep", [_in_a_list, _as_numbers, _in_a_table, _set_by_set])
@pytest.mark.parametrize("kind", ["part", "function"])
def test_passes_that_are_kept_are_counted(keep: Callable[[Ask], Any], kind: str) -> None:
    """Lists and tables that get one more entry with each pass are found, and all passes counted."""
    part = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.3))
    assert _count(part if kind == "part" else Functional(), keep) == _PASSES


@pytest.mark.parametrize("keep", [_for_nothing, _of_several])
def test_passes_that_are_not_kept_are_no_finding(keep: Callable[[Ask], Any]) -> None:
    """Passes whose results are let go, or differ by something else, are left alone."""
    assert _count(Functional(), keep) == 0


def test_a_model_without_dropout_is_left_alone() -> None:
    """Nothing in it was ever to differ."""
    assert _count(nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.0)), _in_a_list) == 0
