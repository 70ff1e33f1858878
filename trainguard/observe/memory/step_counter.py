"""Count the steps of a training that knows nothing of it, and the passes through its loaders."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from trainguard.observe.tools.patches import Patches

_BY_HAND = 8  # backward passes without a step of any optimizer: the steps are made by hand


class StopFollowing(BaseException):
    """Raised inside the user's code once enough steps were seen, so that `finally` blocks run."""


class StepCounter:
    """
    The steps of a training: those of the optimizer that stepped first, or else backward passes.

    count: steps that are over. passes: how many were when a pass through a loader ended in which
    there were some. served: whether a loader served any batch. optimizers: those that have stepped.
    by_hand: whether backward passes are counted, which is found out where nobody says so.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self.count = 0
        self.passes: list[int] = []
        self.served = False
        self.optimizers: list[Optimizer] = []
        self._over = over
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.by_hand = False
        self._backwards = 0

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Count what happens inside."""
        patches = Patches()
        patches.active = True
        hook = register_optimizer_step_post_hook(self._on_step)
        patches.on_undo(hook.remove)
        patches.replace(dataloader._BaseDataLoaderIter, "__next__", self._serves)  # noqa: SLF001
        patches.replace(torch.autograd, "backward", self._goes_back)
        try:
            yield
        finally:
            patches.undo()

    def _on_step(self, optimizer: Optimizer, *_: object) -> None:
        """Know that an optimizer has stepped."""
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        if not self.by_hand and optimizer is self.optimizers[0]:
            self._next()

    def _next(self) -> None:
        """Count a step."""
        self.count += 1
        self._over()

    def _serves(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `__next__` of loaders that tells where a pass ends."""

        @wraps(serve)
        def wrapper(iterator: Any) -> Any:
            """Serve a batch; a pass without a step, as of an evaluation, is none."""
            begun = self._begun.setdefault(iterator, self.count)
            try:
                batch = serve(iterator)
            except StopIteration:
                if self._begun.pop(iterator, begun) < self.count:
                    self.passes.append(self.count)
                raise
            self.served = True
            return batch

        return wrapper

    def _goes_back(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `torch.autograd.backward` that is counted where no optimizer ever steps."""

        @wraps(backward)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Go backward; one inside another (of a checkpoint) is part of it."""
            inside = torch._C._current_graph_task_id() != -1  # noqa: SLF001 as torch's tracker does
            result = backward(*args, **kwargs)
            if not inside and not self.optimizers:
                self._backwards += 1
                self.by_hand = self.by_hand or self._backwards >= _BY_HAND
                if self.by_hand:
                    self._next()
            return result

        return wrapper
