"""Whether the code of a module could move what is not in a copy of it."""

import itertools
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches
from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models import repeat_probe
from trainguard.observe.tools.outside_state import reaches_outside
from trainguard.report.run_summary import as_rows, summarize_run

ARRAYS, PLAIN = np.random.default_rng(0), random.Random(0)
TORCHS, TURNS = torch.Generator().manual_seed(0), itertools.count()
CALLS: list[int] = []
COUNTED = SimpleNamespace(calls=0)
TOTAL = 0
SCALE, SIZES = 2.0, (1, 2)


def bump() -> int:
    """Count a call in a global name."""
    global TOTAL
    TOTAL += 1
    return TOTAL


def counter():
    """Return a function that counts its calls in a closure."""
    calls = 0

    def count() -> int:
        """Count a call."""
        nonlocal calls
        calls += 1
        return calls

    return count


COUNT = counter()


class Shared(nn.Module):
    """Counts its calls at its class."""

    calls = 0

    def forward(self, x):
        """Count, and go on."""
        Shared.calls += 1
        return x * (1 + Shared.calls % 7 / 70)


class Noisy(nn.Module):
    """Takes a number from elsewhere in each call."""

    def __init__(self, noise) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(4, 1), noise

    def forward(self, x):
        """Return what the layer makes of the input, and of the number."""
        return self.layer(x) * (1 + self.noise() % 7 / 70)


class Sound(nn.Module):
    """Does what models do: helpers, constants, a count of its own, numbers of global streams."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.kept = nn.Linear(4, 1), 0, []

    def forward(self, x):
        """Return the output."""
        self.calls += 1
        self.latest = x.detach()
        self.kept.append(x.shape)
        with torch.no_grad():
            noise = torch.rand(()) + np.random.rand() + random.random()
        device = next(self.parameters()).device
        sizes = [size * SCALE for size in SIZES]
        return self.scale(F.relu(self.layer(x)), sizes).to(device) + 0 * noise

    @staticmethod
    def scale(x, sizes):
        """Scale an output."""
        return double(x) / max(sizes, default=1)


def double(x):
    """Double a tensor."""
    return x * SCALE


def write() -> int:
    """Leave a line in a file."""
    with open("calls.txt", "a+", encoding="ascii") as file:  # noqa: PTH123
        file.write("x")
        return file.tell()


OUTSIDE = {
    "numpy": lambda: int(ARRAYS.integers(9)),
    "random": lambda: PLAIN.randint(0, 9),
    "torch": lambda: int(torch.randint(0, 9, (), generator=TORCHS)),
    "iterator": lambda: next(TURNS),
    "list": lambda: CALLS.append(1) or len(CALLS),
    "object": lambda: setattr(COUNTED, "calls", COUNTED.calls + 1) or COUNTED.calls,
    "global": bump,
    "closure": COUNT,
    "file": write,
}


def reset() -> None:
    """Put all that is outside back to its beginning."""
    global TOTAL, TURNS, COUNT, ARRAYS, PLAIN, TORCHS
    TOTAL, TURNS, COUNT = 0, itertools.count(), counter()
    ARRAYS, PLAIN = np.random.default_rng(0), random.Random(0)
    TORCHS = torch.Generator().manual_seed(0)
    CALLS.clear()
    COUNTED.calls = Shared.calls = 0
    OUTSIDE["closure"] = COUNT
    Path("calls.txt").unlink(missing_ok=True)


def train(make) -> list[float]:
    """Train and evaluate a model, and return all losses."""
    reset()
    torch.manual_seed(0)
    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, target in batches(8):
        loss = F.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            losses += [loss.item(), F.mse_loss(model.eval()(inputs), target).item()]
        model.train()
    return losses


MAKES = {name: lambda name=name: Noisy(OUTSIDE[name]) for name in OUTSIDE}
MAKES["class"] = lambda: nn.Sequential(nn.Linear(4, 1), Shared())


@pytest.mark.parametrize("name", MAKES)
def test_what_is_outside_is_left_alone(name, tmp_path, monkeypatch) -> None:
    """Where no child can be made, such a model is named and not tried: its losses are python's."""
    monkeypatch.chdir(tmp_path)
    assert reaches_outside(MAKES[name]())
    plain = train(MAKES[name])
    monkeypatch.setattr(forking, "_forbids_children", lambda: "no fork here")
    with Recorder("x") as recorder:
        watched = train(MAKES[name])
    assert watched == plain
    assert "repeat" not in recorder.trace.conditions["looked"]
    (row,) = [
        words for label, words in as_rows(summarize_run(recorder.trace)) if label == "unprobed"
    ]
    assert "its code reaches what is outside of it" in row
    assert row.startswith("`Sequential`: " if name == "class" else "`Noisy`: ")


@pytest.mark.parametrize(
    "make",
    [
        Sound,
        lambda: nn.TransformerEncoderLayer(8, 2),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout()),
        lambda: nn.LSTM(4, 4, 2),
    ],
)
def test_what_models_do_is_tried(make) -> None:
    """State of the module itself is in the copy, and global streams are put back."""
    assert not reaches_outside(make())


def test_what_models_do_is_tried_without_children(monkeypatch) -> None:
    """Such a model is probed here where no child can be made, and its losses stay what they are."""
    plain = train(Sound)
    monkeypatch.setattr(forking, "_forbids_children", lambda: "no fork here")
    np.random.seed(0)
    random.seed(0)
    with Recorder("x") as recorder:
        watched = train(Sound)
    assert watched == plain
    assert "repeat" in recorder.trace.conditions["looked"]
    assert "unprobed" not in recorder.trace.conditions


def test_a_child_that_fails_is_told(monkeypatch) -> None:
    """A model is named whose child came to no end, and what it was to show is not judged."""

    def break_down(*_):
        """End the child without an answer."""
        os._exit(1)

    monkeypatch.setattr(repeat_probe, "attempt", break_down)
    with Recorder("x") as recorder:
        train(Sound)
    (told,) = recorder.trace.conditions["unprobed"]
    assert told == "`Sound`: the child process that tried it failed: it ended without an answer"
    assert "repeat" not in recorder.trace.conditions["looked"]
