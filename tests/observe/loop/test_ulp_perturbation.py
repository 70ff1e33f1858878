"""A run that begins one unit in the last place elsewhere."""

import copy

import pytest
import torch
from torch import nn

from tests.observe.loop.trainings import adversaries, closures, plain
from trainguard.curves.curve import curves
from trainguard.events.curve import COLUMNS
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.observe.loop.curves import UlpPerturbation
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.isolation import isolate


def recorded(train, nudge: UlpPerturbation | None) -> Trace:
    """Record a training, nudged or not."""
    recorder = Recorder("run", probe=False, nudge=nudge)
    with isolate(0), recorder:
        train()
    return recorder.trace


def losses(train, nudge: UlpPerturbation | None) -> list[float]:
    """Return the losses of a training, nudged or not."""
    return [event.loss for event in recorded(train, nudge) if isinstance(event, Step)]


def by_hand() -> None:
    """Descend by hand, without an optimizer."""
    model = nn.Linear(64, 64)
    for _ in range(12):
        model(torch.randn(8, 64)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


def initialised_late() -> None:
    """Initialise after the optimizer is made, as some trainers do."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    nn.init.xavier_uniform_(model.weight)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def made_lazily() -> None:
    """Let the shapes be known at the first call alone."""
    model = nn.LazyLinear(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def scaled() -> None:
    """Train with gradients that are scaled, clipped and accumulated."""
    model, scaler = nn.Linear(8, 8), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(12):
        scaler.scale(model(torch.randn(8, 8)).square().mean() / 2).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


TRAININGS = [lambda: plain(20), adversaries, closures, by_hand, initialised_late, made_lazily]
NAMES = ["plain", "adversaries", "closures", "by_hand", "initialised_late", "made_lazily"]


@pytest.mark.parametrize("train", TRAININGS, ids=NAMES)
def test_a_nudged_run_drifts_by_roundings(train) -> None:
    """It is another run, and hardly so; no number of the training's own streams is drawn."""
    nudge = UlpPerturbation(1)
    base, moved = losses(train, None), losses(train, nudge)
    assert nudge.moved_count > 0
    assert moved != base
    assert moved == pytest.approx(base, rel=1e-4)


@pytest.mark.parametrize("train", [*TRAININGS, scaled], ids=[*NAMES, "scaled"])
def test_a_run_for_its_curves_has_the_columns_of_any_other(train) -> None:
    """Few watchers are asked, and what they say does not depend on the others."""
    still = UlpPerturbation(1)
    still.move_parameters([])  # from here on nothing is moved
    full, few = recorded(train, None), recorded(train, still)
    for column in set(COLUMNS) - {"memory"}:
        assert curves(few, column) == curves(full, column)
    assert still.moved_count == 0


def test_a_nudge_is_the_same_each_time() -> None:
    """Its signs follow from its seed; another seed has others."""
    runs = [losses(lambda: plain(20), UlpPerturbation(seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_each_element_is_moved_by_its_last_place(dtype: torch.dtype) -> None:
    """Never by more than two units of it, and most by some."""
    layer = nn.Linear(64, 64, dtype=dtype)
    before = copy.deepcopy(layer)
    UlpPerturbation(1).move_module(layer)
    away = (layer.weight.double() - before.weight.double()).abs()
    unit = torch.finfo(dtype).eps * before.weight.double().abs()
    assert bool((away <= 2 * unit).all())
    assert float((away > 0).double().mean()) > 0.3


def test_a_parameter_is_moved_once() -> None:
    """Neither by the next call nor by another optimizer; after a step nothing is moved."""
    layer = nn.Linear(8, 8)
    nudge = UlpPerturbation(1)
    nudge.move_optimizer(torch.optim.SGD(layer.parameters()))
    once = layer.weight.detach().clone()
    nudge.move_module(layer)
    nudge.move_optimizer(torch.optim.Adam(layer.parameters()))
    assert torch.equal(layer.weight, once)
    nudge.move_parameters([layer.weight])
    other = nn.Linear(8, 8)
    before = other.weight.detach().clone()
    nudge.move_module(other)
    assert torch.equal(other.weight, before)


def test_what_is_frozen_or_no_number_is_left_alone() -> None:
    """A frozen backbone and a table of integers stay as they are."""
    layer = nn.Linear(8, 8).requires_grad_(False)
    before = layer.weight.clone()
    nudge = UlpPerturbation(1)
    nudge.move_module(layer)
    assert torch.equal(layer.weight, before)
    assert nudge.moved_count == 0


def test_a_graph_that_was_built_before_is_not_disturbed() -> None:
    """Moving a parameter is no edit in place that backward would refuse."""
    layer = nn.Linear(8, 8)
    loss = (layer.weight @ layer.weight).sum()
    UlpPerturbation(1).move_module(layer)
    loss.backward()
    assert layer.weight.grad is not None
