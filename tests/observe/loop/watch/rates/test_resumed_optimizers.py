"""Trainings that go on from a file: whether the state of their optimizer does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

EMPTY = {"epoch": 3, "model": {"weight": torch.zeros(2, 4)}}


def write(file: Path, rate: float = 0.01, **more: Any) -> None:
    """Write a file of a training that has made some steps."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    step(model, optimizer)
    state = {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}
    torch.save({name: value for name, value in state.items() if value is not None}, file)


def make_model() -> nn.Module:
    """Return a model whose bias begins as that of any other."""
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.bias)
    model.bias.requires_grad_(False)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make a step."""
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


class Task:
    """A training that holds its epoch."""

    epoch = 0

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> None:
        """Count epochs."""
        for self.epoch in range(first, first + 3):
            for _ in range(3):
                step(model, optimizer)


def resume(
    file: Path,
    kind: type[torch.optim.Optimizer] = torch.optim.Adam,
    *,
    first: int = 4,
    load: bool = True,
    weights: bool = True,
    held: bool = False,
    before: float = 0.0,
    **settings: Any,
) -> tuple[list[tuple[float, float, str]], bool]:
    """Go on from a file, and return what was seen of it, and whether anything was."""
    epoch, epochs = 0, 3
    with Recorder("x") as recorder:
        if before:
            own = nn.Linear(4, 2)
            step(own, torch.optim.Adam(own.parameters(), lr=before))
        state, model = torch.load(file), make_model()
        optimizer = kind(model.parameters(), **{"lr": 0.01, **settings})
        if weights:
            model.load_state_dict(state["model"])
        if not load:
            optimizer.load_state_dict(state["optimizer"])
        if held:
            Task().run(model, optimizer, first)
        for epoch in range(first, first + 3 * (not held)):  # noqa: B007 it is read by its name
            for _batch in range(3, 6):
                step(model, optimizer)
    assert epochs == 3
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "resumed optimizer"]
    looked = "resumed optimizer" in recorder.trace.conditions["looked"]
    return [(probe.measured, probe.reference, probe.label) for probe in probes], looked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of a training."""
    write(tmp_path / "last.pt")
    return tmp_path / "last.pt"


@pytest.mark.parametrize("first", [3, 4])
def test_a_state_that_stays_in_the_file(file: Path, first: int) -> None:
    """The epoch of the file is made again, or the next one is."""
    assert resume(file, first=first) == ([(3, 1, "epoch\nAdam")], True)
    found = resume(file, torch.optim.SGD, first=first, momentum=0.9)
    assert found == ([(3, 1, "epoch\nSGD")], True)
    assert resume(file, first=first, held=True) == ([(3, 1, "self.epoch\nAdam")], True)


def test_a_file_without_a_state(file: Path) -> None:
    """It is one where nothing was trained before, or something with the same rate."""
    write(file, optimizer=None)
    assert resume(file) == ([(3, 0, "epoch\nAdam")], True)
    assert resume(file, before=0.01) == ([(3, 0, "epoch\nAdam")], True)
    assert resume(file, before=0.1) == ([], True)
    write(file, optimizer=torch.optim.Adam(make_model().parameters(), lr=0.01).state_dict())
    assert resume(file) == ([(3, 0, "epoch\nAdam")], True)


def test_trainings_that_begin(file: Path) -> None:
    """With a state, without averages, with another rate, from the first epoch, or from others."""
    assert resume(file, load=False) == ([], False)
    assert resume(file, torch.optim.SGD) == ([], True)
    assert resume(file, lr=0.001) == ([], True)
    assert resume(file, lr=0.001, before=0.001) == ([], True)
    assert resume(file, first=0) == ([], True)
    assert resume(file, first=7) == ([], True)
    assert resume(file, weights=False) == ([], False)


@pytest.mark.parametrize(
    "more", [{"epoch": 1}, {"epoch": None, "loss": 3}, {"epoch": 3.0}, {"epoch": True}]
)
def test_files_that_count_nothing(file: Path, more: dict[str, Any]) -> None:
    """Nor those of a training that has hardly begun."""
    write(file, **more)
    for first in (1, 2, 3):
        assert resume(file, first=first) == ([], False)


def test_files_that_are_no_states(file: Path) -> None:
    """Whatever somebody reads."""
    for content in (
        [1, 2],
        {"epoch": 3, "model": {"bias": torch.ones(2)}},
        {3: torch.ones(2, 2)},
        EMPTY,
    ):
        torch.save(content, file)
        with Recorder("x") as recorder:
            torch.load(file, map_location="meta")
            torch.load(file)
            model = nn.Linear(4, 2)
            nn.init.zeros_(model.weight)
            step(model, torch.optim.Adam(model.parameters()))
        assert "faults" not in recorder.trace.conditions
        assert "resumed optimizer" not in recorder.trace.conditions["looked"]
