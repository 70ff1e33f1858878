"""
Probe: whether memory grows from step to step.

Real steps are made, ten of them, and more where something seems to grow: what only fills up to a
bound is told from what never ends. What is alive of nearly every step that is over has grown.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Usage
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.forked import apart
from trainguard.observe.memory.leak_watch import CHECKS, LeakWatch
from trainguard.observe.memory.run_call import call_of, run_silently, silence
from trainguard.observe.memory.training import Training
from trainguard.observe.model.model_case import backward
from trainguard.subjects.loop import Run
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

_LEAST = CHECKS[0]  # steps below which nothing can be said


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield what is left of each step, after the steps of a subject were made for real."""
    subject = observation.subject
    train: Callable[[LeakWatch], None]
    if isinstance(subject, Run):
        call = call_of(subject)

        def train(follower: LeakWatch) -> None:
            """Make the run."""
            with follower.following():
                run_silently(call, lambda: f"after {follower.paces.count} steps")
    else:
        assert isinstance(subject, Model | Loss)
        declared = DeclaredStep(
            subject, observation.budget, "cpu", observation.dtype, observation.settings, {}
        )

        def train(follower: LeakWatch) -> None:
            """Make steps of the model or the loss, as many as it takes."""
            with follower.following(), silence():
                _steps(declared.training(), follower)

    import_module("torch._dynamo")  # which optimizers load at their first step, in each child else
    events = apart(lambda: _events(train))
    steps = events[0].count
    if steps < _LEAST:
        raise Unjudged(f"{steps} steps were made: growth is told from {_LEAST} on")
    yield from events


def _events(train: Callable[[LeakWatch], None]) -> list[Usage]:
    """Follow a training, and return what is left of each step."""
    follower = LeakWatch()
    train(follower)
    steps = Usage(quantity="steps", count=follower.steps)
    return [steps, *follower.told]


def _steps(training: Training, follower: LeakWatch) -> None:
    """Make steps until the follower has seen enough."""
    module = training.build()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = training.optimizer(trained) if training.optimizer and trained else None
    follower.paces.by_hand = optimizer is None
    for _ in range(CHECKS[-1]):
        _step(training, module, optimizer)


def _step(training: Training, module: nn.Module, optimizer: Optimizer | None) -> None:
    """Make one step."""
    inputs = training.feed()
    loss, _held = training.loss(module, inputs)
    backward(loss)
    if optimizer is not None:
        optimizer.step()
    module.zero_grad(set_to_none=True)
