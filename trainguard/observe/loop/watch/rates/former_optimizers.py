"""Watches optimizers that take the place of others: whether their schedulers come with them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from trainguard.events.base import Event
from trainguard.observe.loop.watch.rates.rates import Rates, SchedulerHistory
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Window

_MOST = 16  # optimizers that are looked at


class _TakenPlace(NamedTuple):
    """
    A scheduler whose optimizer was followed by another one, which has all its parameters.

    calls, steps: how often it was advanced, and its optimizer stepped, before.
    """

    scheduler: SchedulerHistory
    calls: int
    former: Window
    steps: int
    window: Window


class FormerOptimizers(Watcher):
    """
    The Probe event "former optimizer", of a scheduler that goes on though its optimizer does not.

    measured: how often it was advanced since another optimizer of the same class, which has no
    scheduler, makes steps with its parameters; reference: how often in all.
    """

    makes = ("Probe:former optimizer",)
    relies_on = ("Rates",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._met: set[int] = set()
        self._found: list[_TakenPlace] = []

    def before_step(self, window: Window) -> Columns:
        """See at the first of its steps that is watched whose place an optimizer takes."""
        if id(window) in self._met or len(self._met) >= _MOST:
            return {}
        self._met.add(id(window))
        own = {id(parameter) for parameter in window.parameters}
        for seen in self.recorder.watcher(Rates).histories():
            former = seen.window
            if former is None or former is window or not former.index or seen.part:
                continue
            held = {id(parameter) for parameter in former.parameters}
            if held and held <= own and _kind(former) is _kind(window):
                self._found.append(_TakenPlace(seen, seen.calls, former, former.index, window))
        return {}

    def finish(self) -> Iterable[Event]:
        """Return the schedulers that were advanced for nothing."""
        driven = {id(seen.window) for seen in self.recorder.watcher(Rates).histories()}
        for seen, calls, former, steps, window in self._found:
            self.looked.add("former optimizer")
            late = seen.calls - calls
            if late and former.index == steps and id(window) not in driven:
                yield make_probe(
                    "former optimizer",
                    late,
                    seen.calls,
                    label=f"{seen.name} of {former.name}",
                    source=seen.advanced,
                )


def _kind(window: Window) -> type | None:
    """Return the class of the optimizer of a window, None of what steps by hand."""
    return type(window.optimizer()) if window.optimizer is not None else None
