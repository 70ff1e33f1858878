"""Calls of LSTM layers with two states, and whether these are in the other order."""

from collections.abc import Callable

import pytest
from torch import nn

from trainguard.observe.tools.state_roles import find_states


class Steps(nn.Module):
    """Cells that go from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.lstm, self.gru = nn.LSTMCell(2, 4), nn.LSTM(2, 4), nn.GRUCell(2, 4)
        self.cells = nn.ModuleList([nn.LSTMCell(2, 4), nn.LSTMCell(4, 4)])
        self.norm = nn.LayerNorm(4)


def of_a_cell(self, x, h, c):
    """Take the one for the other."""
    for step in x:
        c, h = self.cell(step, (h, c))
    return h


def detached(self, x, h, c):
    """Take the one for the other, by keyword, and cut the graph."""
    for step in x:
        c, h = self.cell(step, hx=(h.detach(), c.detach()))
    return h


def of_layers(self, x, h, c):
    """Take the one for the other, in a list of cells."""
    for index in range(2):
        h, c = self.cells[index](x, (c, h))
    return h


def of_a_sequence(self, x):
    """Take the one for the other, from one layer to the next."""
    _, (h, c) = self.lstm(x)
    out, _ = self.lstm(x, (c, h))
    return out


def plain(self, x, h, c):
    """Hand both back in their order."""
    for step in x:
        h, c = self.cell(step, (h, c))
        h = self.norm(h)
    return h


def other_names(self, x, c, h):
    """Call them by each other's names, and hand them back in their order."""
    for step in x:
        c, h = self.cell(step, (c, h))
    return c


def exchanged(self, x, h, c):
    """Exchange them twice."""
    for step in x:
        c, h = self.cell(step, (h, c))
        h, c = c, h
    return h


def reused(self, x, h, c):
    """Use one name for both, at different places."""
    h, c = self.cell(x, (h, c))
    d, c = c, h
    c, h = self.cell(x, (c, d))
    return self.cell(x, (h, c))


def squashed(self, x, h, c):
    """Hand on what is made of a state."""
    h, c = self.cell(x, (c.tanh(), h))
    return h


def of_another_kind(self, x, h, c):
    """Ask what is no LSTM."""
    c, h = self.gru(x, (h, c))
    _, h = self.gru(x, h), c
    return h


@pytest.mark.parametrize("forward", [of_a_cell, detached, of_layers, of_a_sequence])
def test_states_in_the_other_order(forward: Callable) -> None:
    """Each call is told, with its line."""
    ((statement, line, is_swapped),) = find_states(forward.__code__, {}, Steps())
    assert is_swapped
    assert "(x" in statement or "(step" in statement
    assert 0 < line - forward.__code__.co_firstlineno < 5


@pytest.mark.parametrize("forward", [plain, other_names])
def test_states_in_their_order(forward: Callable) -> None:
    """They are judged, and right."""
    assert [found[2] for found in find_states(forward.__code__, {}, Steps())] == [False]


@pytest.mark.parametrize("forward", [exchanged, reused, squashed, of_another_kind])
def test_what_cannot_be_told(forward: Callable) -> None:
    """Nothing is said of it."""
    assert list(find_states(forward.__code__, {}, Steps())) == []


def test_a_list_of_others() -> None:
    """Nothing is said of a list of other layers, or of none."""
    steps = Steps()
    steps.cells = nn.ModuleList([nn.GRUCell(2, 4)])
    assert list(find_states(of_layers.__code__, {}, steps)) == []
    steps.cells = nn.ModuleList([])
    assert list(find_states(of_layers.__code__, {}, steps)) == []
