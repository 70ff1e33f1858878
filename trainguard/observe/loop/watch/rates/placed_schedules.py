"""Watches schedules that are told where they go on: whether that is counted as they advance."""

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_WENT_ON = 2  # advances: a schedule that is told fewer hardly goes on
_LOOKS = 20  # steps after which it is known whether each of them advances it
_MOSTLY = 0.9  # of the steps, as some are skipped
_BEHIND = 2  # times as many steps of the optimizer: no remainder of an epoch makes that
_SMALL = 0.05  # of the rate: what has hardly jumped goes on, by whatever it counts


@dataclass(slots=True)
class _Placed:
    """
    A schedule that goes on from a place, and whose rate is not the one that was there.

    place: its advances; made: the steps of its optimizer. until: the step at which it is looked at.
    """

    scheduler: "weakref.ref[Any]"
    optimizer: "weakref.ref[Optimizer]"
    place: int
    made: int
    source: str
    until: int = 0


class PlacedSchedules(Watcher):
    """
    The Probe event "resumed place": a schedule that each step advances, told a place in epochs.

    measured: its place; reference: the steps that its optimizer had made by then.
    """

    makes = ("Probe:resumed place",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._waiting: list[_Placed] = []
        self._found: list[Probe] = []

    def install(self, patches: Patches) -> None:
        """Listen to schedulers that are made."""
        patches.replace(LRScheduler, "__init__", self._places)

    def before_step(self, window: Window) -> Columns:
        """Look at the schedules of an optimizer once they had time to advance."""
        for one in self._waiting[:]:
            optimizer, scheduler = one.optimizer(), one.scheduler()
            if optimizer is None or scheduler is None:
                self._waiting.remove(one)
            elif window.optimizer is not None and window.optimizer() is optimizer:
                one.until = one.until or window.index + _LOOKS
                if window.index >= one.until:
                    self._waiting.remove(one)
                    with suppress(Exception):  # whatever somebody's scheduler counts by
                        steps = window.index - one.until + _LOOKS
                        self._look(one, scheduler, steps)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found

    def _places(self, make: Callable[..., None]) -> Callable[..., None]:
        """Return an `__init__` of schedulers that sees what it makes of the rate."""

        @wraps(make)
        def wrapper(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            """Make the scheduler."""
            rate = _rate_of(args, kwargs)
            make(scheduler, *args, **kwargs)
            if self.recorder.patches.active and rate:
                self._note(scheduler, rate)

        return wrapper

    @shielded
    def _note(self, scheduler: Any, rate: float) -> None:
        """Take down a schedule that goes on, where the rate leaps; rate: that before it."""
        place, optimizer = getattr(scheduler, "last_epoch", 0), scheduler.optimizer
        if type(place) is not int or place <= _WENT_ON:
            return
        self.looked.add("resumed place")
        now, made = optimizer.param_groups[0]["lr"], _steps_of(optimizer)
        if abs(now - rate) > _SMALL * max(now, rate) and made >= _BEHIND * place:
            refs = weakref.ref(scheduler), weakref.ref(optimizer)
            self._waiting.append(_Placed(*refs, place, made, caller()))

    def _look(self, one: _Placed, scheduler: Any, steps: int) -> None:
        """Tell of a schedule that was advanced by nearly every step since."""
        if scheduler.last_epoch - one.place >= _MOSTLY * steps:
            probe = Probe(
                probe="resumed place",
                measured=float(one.place),
                reference=float(one.made),
                step=self.recorder.steps,
                label=type(scheduler).__name__,
                source=one.source,
            )
            self._found.append(probe)


def _rate_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the rate of the optimizer that a scheduler is made for; 0 where it is no number."""
    optimizer = args[0] if args else kwargs.get("optimizer")
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else 0.0
    return rate if isinstance(rate, float) else 0.0


def _steps_of(optimizer: Optimizer) -> int:
    """Return how many steps an optimizer has made, 0 where it does not count them."""
    counts = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
    numbers = [
        int(each)
        for each in counts
        if isinstance(each, int | float) or (isinstance(each, torch.Tensor) and each.is_cpu)
    ]
    return max(numbers, default=0)
