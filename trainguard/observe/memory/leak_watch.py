"""Follow a training from step to step, for as long as it may be that its memory grows."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import ModuleScopes
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.growth_report import (
    KIB,
    Growth,
    HostMemory,
    Span,
    growth_events,
    span,
)
from trainguard.observe.memory.live_objects import (
    AutogradGraphs,
    LiveStorage,
    LiveStorages,
    Mark,
    Place,
)
from trainguard.observe.memory.run_call import call_of, run_silently, silence
from trainguard.observe.memory.step_counter import StepCounter, StopFollowing
from trainguard.observe.memory.training import Training
from trainguard.observe.model.model_case import backward
from trainguard.observe.tools.child_process import call_in_child
from trainguard.subjects.loop import Run
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

CHECKS = (10, 20, 40, 80)  # steps after which a training goes on only where something grows
_LOOKS = (2, 4, 6, 8, *CHECKS)  # at what is held outside of tensors
_SECONDS = 3.0  # that going on may take, or as long as the first check took
_LEAST = CHECKS[0]  # steps below which nothing can be said


class LeakWatch:
    """Follow the steps that are made while entered; `over` is told at the end of each."""

    def __init__(self) -> None:
        self.scopes = ModuleScopes()
        self.residents = LiveStorages(self.scopes)
        self.graphs = AutogradGraphs(self.scopes)
        self.host = HostMemory()
        self.paces = StepCounter(self.over)
        self.growth: Growth | None = None
        self.told: list[Usage] = []
        self.steps = 0
        self._began = self._first = 0.0

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what happens inside; StopFollowing, raised once enough is known, ends it."""
        gc.freeze()  # what there was before need not be looked through at every check
        self._began = perf_counter()
        self.residents.step = self.graphs.step = 1
        try:
            with (
                self.scopes.follow(),
                self.graphs.follow(),
                self.host.follow(),
                self.paces.follow(),
                self.residents,
            ):
                yield
        except StopFollowing:
            pass
        finally:
            gc.unfreeze()

    def over(self) -> None:
        """Take note of the end of a step; raises StopFollowing once it is clear what grows."""
        self.steps += 1
        steps = self.steps
        if steps == 1:
            self.host.begin()  # what is made once, in the first step, is not looked at
        if steps in _LOOKS:
            gc.collect()  # what only waits for it is not kept
            self.host.look(steps)
        if steps in CHECKS:
            self._check()
            if self._knows_enough():
                raise StopFollowing(f"{steps} steps were followed")
        self.scopes.forget_step()
        self.residents.step = self.graphs.step = steps + 1

    def _check(self) -> None:
        """See what has grown by now, and who keeps it, while the training's names are there."""
        now = span(self.steps, self.paces.passes, self.paces.served)
        growth = Growth(now, self._lasting_graphs(now), self._lasting_storages(now))
        growth.host = self.host.growing(KIB, now.first - 1 if now.settled else 0)
        if growth.suspicious:
            gc.unfreeze()
            growth.ask_keepers()
            gc.freeze()
        self.growth = growth
        self.told = list(growth_events(growth, self.steps))  # now, while all of it is there

    def _lasting_graphs(self, now: Span) -> list[Mark]:
        """Return the marks of graphs, where there are some of nearly every step."""
        marks = self.graphs.find_marks(now.first, now.last)
        return marks if now.steady({mark.step for mark in marks}) else []

    def _lasting_storages(self, now: Span) -> dict[Place, list[LiveStorage]]:
        """Return the storages that stay, by place, where there are some of nearly every step."""
        self.residents.excuse(
            tensor
            for optimizer in self.paces.optimizers
            for tensor in tree_iter(list(optimizer.state.values()))
            if isinstance(tensor, Tensor)
        )
        places: dict[Place, list[LiveStorage]] = {}
        for one in self.residents.find_storages(now.first, now.last):
            places.setdefault(one.place, []).append(one)
        return {
            place: kept for place, kept in places.items() if now.steady({one.step for one in kept})
        }

    def _knows_enough(self) -> bool:
        """Say whether nothing grows, or it has grown for long enough."""
        if self.growth is None or not self.growth.suspicious or self.steps == CHECKS[-1]:
            return True
        now = perf_counter()
        if self.steps == CHECKS[0]:
            self._first = now - self._began
        return now - self._began - self._first > max(_SECONDS, self._first)


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
    events = call_in_child(lambda: _events(train))
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
