"""Steps that are made without an optimizer of torch: which moves are steps, and which are not."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Step
from trainguard.observe.loop import window
from trainguard.observe.loop.recorder import Recorder


def steps_of(train, *more) -> list[Step]:
    """Record a training, and return its steps."""
    with Recorder("x") as recorder:
        train(*more)
    return [event for event in recorder.trace if isinstance(event, Step)]


def leaves() -> list[torch.Tensor]:
    """Make the weights of a linear layer that is no module."""
    return [(0.5 * torch.randn(4, 1)).requires_grad_(), torch.zeros(1, requires_grad=True)]


def descend(parameters, gradients, rate: float = 0.05) -> None:
    """Make a step by hand."""
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= rate * gradient


def along_attribute(count: int = 5) -> list[torch.Tensor]:
    """Train what is in no module, along `.grad`."""
    weight, bias = parameters = leaves()
    for inputs, target in batches(count):
        F.mse_loss(inputs @ weight + bias, target).backward()
        descend(parameters, [p.grad for p in parameters])
        weight.grad = bias.grad = None
    return parameters


def along_returned(count: int = 5) -> list[torch.Tensor]:
    """Train what is in no module, along what `torch.autograd.grad` returns."""
    weight, bias = parameters = leaves()
    for inputs, target in batches(count):
        loss = F.mse_loss(inputs @ weight + bias, target)
        descend(parameters, torch.autograd.grad(loss, parameters))
    return parameters


def module_along_returned(count: int = 5) -> list[torch.Tensor]:
    """Train a module along what `torch.autograd.grad` returns."""
    model = network()
    parameters = list(model.parameters())
    for inputs, target in batches(count):
        loss = F.mse_loss(model(inputs), target)
        descend(parameters, torch.autograd.grad(loss, parameters))
    return parameters


def beside_an_optimizer(count: int = 13) -> list[torch.Tensor]:
    """Train by hand what an optimizer holds that never steps."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, target in batches(count):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        descend(model.parameters(), [p.grad for p in model.parameters()])
    return list(model.parameters())


TRAININGS = [along_attribute, along_returned, module_along_returned, beside_an_optimizer]


@pytest.mark.parametrize("train", TRAININGS, ids=lambda train: train.__name__)
def test_a_step_by_hand_is_a_step(train) -> None:
    """Losses, norms and parameters are known, and the training is what it would have been."""
    torch.manual_seed(0)
    plain = train()
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        recorded = train()
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert len(steps) == 5
    assert {step.optimizer for step in steps} == {"by hand"}
    assert all(step.loss > 0 and step.norm > 0 for step in steps)
    assert {(step.received, step.held) for step in steps} == {(len(plain), len(plain))}


def attack(model: nn.Module) -> None:
    """Move an input against a model that stays as it is."""
    inputs = torch.randn(4, 4, requires_grad=True)
    for _ in range(12):
        model(inputs).sum().backward()
        descend([inputs], [-inputs.grad])
        (given,) = torch.autograd.grad(model(inputs).sum(), inputs)
        descend([inputs], [-given])


def descend_twice(model: nn.Module) -> None:
    """Differentiate gradients: what is differentiated second is no loss."""
    parameters = list(model.parameters())
    for inputs, target in batches(3):
        loss = F.mse_loss(model(inputs), target)
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        descend(parameters, torch.autograd.grad(sum(g.sum() for g in first), parameters))


@pytest.mark.parametrize("move", [attack, descend_twice], ids=lambda move: move.__name__)
def test_other_moves_are_no_steps(move) -> None:
    """Inputs are not learned, and the gradient of a gradient says nothing of a loss."""
    assert steps_of(move, network()) == []


def perturbed(count: int = 12) -> None:
    """Step where the loss is highest nearby: parameters move twice for each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, target in batches(count):
        F.mse_loss(model(inputs), target).backward()
        there = [0.01 * p.grad for p in model.parameters()]
        descend(model.parameters(), there, -1)
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        descend(model.parameters(), there, 1)
        optimizer.step()
        optimizer.zero_grad()


def test_what_an_optimizer_steps_is_left_to_it() -> None:
    """A perturbation before the step is no step."""
    assert {step.optimizer for step in steps_of(perturbed)} == {"SGD"}


@pytest.mark.parametrize("share", [1.0, 0.05])
def test_a_target_that_follows(share: float) -> None:
    """A copy that gets gradients, as a target nobody detached, is not stepped where it follows."""

    def train() -> None:
        """Learn from a target network that is moved to the model every other step."""
        model, target = network(), network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for count, (inputs, wanted) in enumerate(batches(9)):
            loss = F.mse_loss(model(inputs), wanted + 0.9 * target(inputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if count % 2:
                with torch.no_grad():
                    for ours, theirs in zip(target.parameters(), model.parameters(), strict=True):
                        ours.lerp_(theirs, share)

    assert {step.optimizer for step in steps_of(train)} == {"SGD"}


@pytest.mark.parametrize("width", [4, 1])
def test_a_model_by_hand_beside_one_of_an_optimizer(width: int) -> None:
    """What goes its own way is stepped by hand, though another model is like it, however small."""

    def train() -> None:
        """Train two, one of them by hand."""
        model, other = nn.Linear(width, 1), nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, wanted in batches(9):
            optimizer.zero_grad()
            other.zero_grad()
            ours, theirs = model(inputs[:, :width]), other(inputs[:, :width])
            (F.mse_loss(ours, wanted) + F.l1_loss(theirs, wanted)).backward()
            optimizer.step()
            descend(list(other.parameters()), [p.grad for p in other.parameters()])

    assert Counter(step.optimizer for step in steps_of(train)) == {"SGD": 9, "by hand": 9}


@pytest.mark.parametrize("train", [along_attribute, along_returned])
def test_what_an_earlier_training_left_behind_is_no_matter(train) -> None:
    """An optimizer that is still in memory, and holds nothing of this run."""
    left = torch.optim.SGD(leaves(), lr=0.1)
    assert len(steps_of(train)) == 5
    assert left.param_groups


def module_along_attribute(count: int = 5) -> list[torch.Tensor]:
    """Train a module along `.grad`, in two passes backward for each step."""
    model = network()
    for inputs, target in batches(count):
        model.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            F.mse_loss(model(inputs[half]), target[half]).backward()
        descend(model.parameters(), [p.grad for p in model.parameters()])
    return list(model.parameters())


LONG = [along_attribute, along_returned, module_along_returned, module_along_attribute]


@pytest.mark.parametrize("train", LONG, ids=lambda train: train.__name__)
def test_of_a_long_run_some_steps_are_recorded(train, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted; those that are recorded are whole, with all that led to them."""
    monkeypatch.setattr(window, "DENSE", 64)
    torch.manual_seed(0)
    plain = train(140)
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        watched = train(140)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert recorder.steps == 140
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    some = [step for step in range(20, 64) if step % 32 % 7 == 0]
    assert [step.step for step in steps] == [*range(20), *some, *range(64, 140, 16)]
    early, late = steps[8:20], steps[20:]
    for column in ("trained", "order", "received"):
        assert {getattr(s, column, 0) for s in late} == {getattr(s, column, 0) for s in early}
    assert all(s.losses and len(s.losses) == len(early[0].losses) for s in late)


@pytest.mark.parametrize("cleared", [True, False])
def test_what_is_not_finite_is_named(cleared: bool) -> None:
    """By the last parameter of the model, also where gradients are cleared before the step ends."""
    weight, bias = parameters = leaves()
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def train() -> None:
        """Climb, faster and faster."""
        for inputs, target in batches(40):
            (1e18 * F.mse_loss(inputs @ weight + bias, target)).backward()
            descend(parameters, [p.grad for p in parameters], rate=-1.0)
            if cleared:
                optimizer.zero_grad()

    with Recorder("x") as recorder:
        train()
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert not recorder.trace.conditions.get("faults")
    assert any("gradient of" in step.culprit or "output" in step.culprit for step in steps)
