"""Lines of a training that compute something for nothing."""

import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Forgetful(nn.Module):
    """Forgets what its activation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.last == nn.Linear(4, 3)  # noqa: B015 the mistake

    def forward(self, x):
        """Return scores."""
        hidden = self.first(x)
        F.relu(hidden)
        return self.last(hidden)


def set_rate(optimizer, rate) -> None:
    """Set a rate where nothing reads it."""
    for group in optimizer.state_dict()["param_groups"]:
        group["lr"] = rate


@torch.no_grad()
def rank(model, rows):
    """Leave out what was seen, or so it seems."""
    scores = model(rows)
    scores.masked_fill(rows[:, :2] > 0, float("-inf"))
    return scores.argmax(1)


def test_functions_under_a_decorator_are_read() -> None:
    """What has a method that only tensors have is one, whatever else is known."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            rank(model, torch.randn(8, 3))
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    found = [e.label for e in recorder.trace if isinstance(e, Probe) and e.probe == "discarded"]
    assert found == ["scores.masked_fill(rows[:, :2] > 0, float('-inf'))"]


pairs = torch.zeros(3)  # what a variable of a function hides


def count_pairs() -> int:
    """Collect something that is a tensor elsewhere."""
    pairs = set()
    for number in range(8):
        pairs.add(number % 3)
    return len(pairs)


def test_variables_of_a_function_hide_those_of_its_module() -> None:
    """A set that has the name of a tensor outside is a set."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            count_pairs()
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    assert [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "discarded"] == []


def test_lines_of_modules_and_functions_are_told() -> None:
    """Those that learn, those that make steps, and those that these call."""
    model = Forgetful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for step in range(4):
            set_rate(optimizer, 0.1 / (1 + step))
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e.label for e in recorder.trace if isinstance(e, Probe) and e.probe == "discarded"]
    assert found[:2] == ["F.relu(hidden)", "self.last == nn.Linear(4, 3)"]
    assert found[2:] == ["for group in optimizer.state_dict()['param_groups']:"]


class Unread(nn.Module):
    """Makes something of a norm and of a scale, and reads neither."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(3), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        """Return scores."""
        normed = self.norm(x)  # noqa: F841 the mistake
        x = x.relu()
        scaled = x * self.scale  # noqa: F841 the mistake
        return self.last(x)


class Overwritten(Unread):
    """Overwrites what its norm returns."""

    def forward(self, x):
        """Return scores."""
        x = self.norm(x)
        x = torch.ones(8, 3)
        return self.last(x)


def test_what_is_overwritten_is_told_once() -> None:
    """As a statement without an effect."""
    model = Overwritten()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    told = [e.probe for e in recorder.trace if isinstance(e, Probe)]
    assert (told.count("discarded"), told.count("unread layer")) == (1, 0)


def test_what_is_made_of_parameters_and_never_read_is_told() -> None:
    """By the names of the layer and the parameter, and the statement."""
    model = Unread()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread layer"]
    assert [probe.label for probe in found] == [
        "Unread.norm\nnormed = self.norm(x)",
        "Unread.scale\nscaled = x * self.scale",
    ]


class Turned(nn.Module):
    """Forgets what a method of its own makes, which another one calls."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def turn(self, x):
        """Return the same."""
        torch.flip(x, dims=[1])
        return x

    def unused(self, x):
        """Return the same, for nobody."""
        torch.roll(x, 1)
        return x

    def score(self, x):
        """Return scores."""
        return self.last(self.turn(x))


def test_methods_that_are_called_are_read() -> None:
    """By those that are called in the place of the module, and no others."""
    model = Turned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            model.score(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e.label for e in recorder.trace if isinstance(e, Probe) and e.probe == "discarded"]
    assert found == ["torch.flip(x, dims=[1])"]


def test_scripted_modules_are_passed_by() -> None:
    """Their classes raise where they are asked for what they compute."""
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)))
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.ones(8, 3))
    assert recorder.trace.conditions.get("faults", ()) == ()
