"""
Whether a planted mistake does harm: a model that is no worse than one of another seed shows none.

The losses that a mutant logs say it where they can (`trainguard/command/mutate/seeds.py`). Where it
changes what is measured (another loss, other labels, a mask that is gone), the parameters that it
ends with are put into the training as it is, which then makes its steps without learning.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from trainguard.command.mutate.command import Work
from trainguard.command.mutate.mistakes.operator import Mutant
from trainguard.command.mutate.seeds import (
    Outcome,
    came_to,
    is_told_by_losses,
    is_worse,
    reseeded,
)
from trainguard.command.mutate.trial import Trial, try_training


@dataclass
class Yardstick:
    """What a training comes to from several seeds, by the losses that it logs and as put in."""

    work: Work
    logged: list[Outcome] = field(default_factory=list)
    put: list[Outcome] = field(default_factory=list)

    def does_harm(self, mutant: Mutant, trial: Trial) -> bool:
        """Say whether a mutant is worse than all seeds; what cannot be measured is."""
        if trial.numbers == self.work.whole.numbers:
            return True  # the model is the same, and something else that is said of it is not
        if is_told_by_losses(mutant):
            self.logged = self.logged or [came_to(self._run(c)) for c in self._seeds()]
            return is_worse(came_to(trial), self.logged)
        found = self._put({mutant.path: mutant.text}, {})
        self.put = self.put or [self._put(changes, changes) for changes in self._seeds()]
        return is_worse(found, self.put)

    def _seeds(self) -> list[dict[str, bytes]]:
        """Return the training with its own seed, and with others."""
        script = self.work.order.project.script
        text = (self.work.order.project.root / script).read_bytes()
        return [{}, *({script: other} for other in reseeded(text))]

    def _put(self, learned: dict[str, bytes], judged: dict[str, bytes]) -> Outcome:
        """Train one version, and measure its parameters in another."""
        with tempfile.TemporaryDirectory(prefix="trainguard-") as folder:
            with stepping(keeper(Path(folder))):
                self._run(learned)
            with stepping(putter(Path(folder))):
                return came_to(self._run(judged), whole=True)

    def _run(self, changes: dict[str, bytes]) -> Trial:
        """Run a version of the training."""
        order, limit = self.work.order, max(20.0, 5 * self.work.whole.seconds)
        return try_training(order.project, changes, order.steps, limit)


@contextmanager
def stepping(hook: Callable[..., None]) -> Iterator[None]:
    """Let the children of this process, not theirs, call a function after each optimizer step."""
    here = os.getpid()

    def call(optimizer: Optimizer, *_: Any) -> None:
        """Call it in the process that trains, and not where a step is only tried out."""
        if os.getppid() == here:
            hook(optimizer)

    handle = register_optimizer_step_post_hook(call)
    try:
        yield
    finally:
        handle.remove()


def keeper(folder: Path) -> Callable[[Optimizer], None]:
    """Return what writes down the parameters of an optimizer, the newest in place of the last."""
    order: dict[int, int] = {}

    def keep(optimizer: Optimizer) -> None:
        """Write them down."""
        name = order.setdefault(id(optimizer), len(order))
        torch.save([p.detach().clone() for p in parameters(optimizer)], folder / f"{name}.pt")

    return keep


def putter(folder: Path) -> Callable[[Optimizer], None]:
    """Return what puts these parameters in place of what an optimizer made of its own."""
    order: dict[int, int] = {}
    kept: dict[int, list[torch.Tensor]] = {}

    def put(optimizer: Optimizer) -> None:
        """Put them in; raises where they do not fit."""
        name = order.setdefault(id(optimizer), len(order))
        if name not in kept:
            kept[name] = torch.load(folder / f"{name}.pt")
        with torch.no_grad():
            for own, other in zip(parameters(optimizer), kept[name], strict=True):
                if own.shape != other.shape:
                    raise ValueError(f"{tuple(other.shape)} is not {tuple(own.shape)}")
                own.copy_(other)

    return put


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]
