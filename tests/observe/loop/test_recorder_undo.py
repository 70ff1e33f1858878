"""A recording leaves no trace: all is put back, and what was trained is bit for bit the same."""

import gc
import random
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim import lr_scheduler

from tests.observe.loop.attributes import attributes, hooks, places
from trainguard.observe.loop.recorder import Recorder


@pytest.fixture
def untouched():
    """Compare every attribute and the number of global hooks before and after a test."""
    model = nn.Linear(1, 1)  # what the first use of torch sets up
    torch.optim.Adam(model.parameters(), lr=1.0).zero_grad()
    where = places()
    before, count = attributes(where), hooks()
    yield
    after = attributes(where)
    changed = [key for key in before if after.get(key, None) is not before[key]]
    added = [key for key in after if key not in before]
    assert (changed, added, hooks()) == ([], [], count)


def test_all_that_is_replaced_is_compared(untouched) -> None:
    """No watcher replaces anything in a place that the comparison does not look at."""
    before = attributes()
    with Recorder("x") as recorder:
        replaced = {(owner, name) for owner, name, *_ in recorder.patches._replaced}
        during = attributes()
    compared = {key for key in during if during[key] is not before.get(key)}
    loggers = {key for key in replaced if "add_scalar" in key[1] or key[1].startswith("log")}
    early = {key for key in replaced if getattr(key[0], "__name__", "torch")[:5] != "torch"}
    assert len(replaced) > 20
    # Loss functions that other modules had bound early are replaced there, and tested with Terms.
    assert replaced - loggers - early <= compared


def train(at_step=lambda step: None, steps: int = 6) -> nn.Module:
    """Train a small network, and call `at_step` in the middle of each step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        at_step(step)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return model


def stop(error: BaseException):
    """Return what raises an error in the third step."""

    def at_step(step: int) -> None:
        """Raise, when it is time."""
        if step == 2:
            raise error

    return at_step


def test_a_run_that_ends_leaves_nothing(untouched) -> None:
    """After the last line everything is as it was, on the model and its optimizer too."""
    with Recorder("x") as recorder:
        model = train()
    assert recorder.trace.conditions["ended"] == "finished"
    assert hooks_of(model) == 0


def hooks_of(model: nn.Module) -> int:
    """Count the hooks on the modules and parameters of a model."""
    names = [name for name in vars(model) if name.endswith("_hooks")]
    on_modules = sum(len(getattr(m, name)) for m in model.modules() for name in names)
    return on_modules + sum(len(p._backward_hooks or ()) for p in model.parameters())


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)], ids=type)
def test_a_run_that_fails_leaves_nothing(untouched, error) -> None:
    """The error comes through as it is, and everything is as it was."""
    recorder = Recorder("x")
    with pytest.raises(type(error)) as caught, recorder:
        train(stop(error))
    assert caught.value is error
    assert recorder.trace.conditions["ended"] == "failed"
    assert recorder.steps == 2


def test_a_run_that_is_stopped_leaves_nothing(untouched) -> None:
    """After the steps that were asked for, `finally` blocks run and everything is as it was."""
    done = []

    def run() -> None:
        """Train, and note that the block was left in order."""
        try:
            train(steps=100)
        finally:
            done.append(True)

    with Recorder("x", steps=3) as recorder:
        run()
    assert (recorder.steps, done) == (3, [True])
    assert recorder.trace.conditions["ended"] == "stopped"


def test_a_run_that_swallows_the_stop_ends_all_the_same(untouched) -> None:
    """A loop that catches everything is asked again at its next step."""

    def stubborn() -> None:
        """Go on after the stop."""
        for _ in range(5):
            with suppress(BaseException):
                train(steps=2)

    with Recorder("x", steps=3):
        stubborn()


def test_a_run_inside_a_run_leaves_the_outer_one(untouched) -> None:
    """Two recordings may be nested: both see the steps, and the inner one ends first."""
    with Recorder("outer") as outer:
        train(steps=2)
        with Recorder("inner") as inner:
            train(steps=3)
        train(steps=4)
    assert (outer.steps, inner.steps) == (9, 3)


def test_an_error_while_hooks_are_installed_leaves_nothing(untouched, monkeypatch) -> None:
    """Where a watcher cannot begin, what was replaced so far is put back in the end."""
    recorder = Recorder("x")
    monkeypatch.setattr(recorder.watchers[-1], "install", lambda _: 1 / 0)
    with recorder:
        train()


def test_the_recorder_keeps_nothing_of_the_training() -> None:
    """Once the recording is over, models, optimizers and loggers are gone with the script."""
    with Recorder("x") as recorder:
        model = train()
        print("loss 0.5")
    alive = [weakref.ref(part) for part in (model, *model.parameters())]
    del model
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
    assert len(recorder.trace) > 6


def streams() -> tuple:
    """Return where the streams of random numbers are."""
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (kind, keys.tolist(), *rest)


@pytest.mark.parametrize("probe", [True, False])
def test_random_numbers_are_where_they_were(probe) -> None:
    """The three streams stand where they would stand without a recording."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    train(steps=12)
    plain = streams()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    with Recorder("x", probe=probe):
        train(steps=12)
    assert streams() == plain
