"""When a recording is looked at while it goes on: soon after its start, then rarely."""

import os
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trainguard.events.base import Event, Plain
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.observe.loop.faults import describe
from trainguard.observe.loop.stopped import Stopped

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

SHARE = 0.004  # of the run's time that looks may take, but for the alarms; half a percent in all
_GRACE = 0.2  # seconds that looks may take in a run so short that half a percent is nothing
_FIRST = 32  # steps; before them little can be told, see SOON of the catalogue
# What is certain at step N is told at 1.25 N at the latest, as far as SHARE allows, and what an
# evaluation shows after the next step.
_GROWTH = 1.25
_EVERY = 5.0  # seconds after which a look is due however few steps were made since
_ALARMS = 3  # looks at once; a loss that stays nan is told after the first

Look = Callable[[int, Trace[Any]], str]


class LiveLooks:
    """
    Has a recording looked at now and then, within a share of its time.

    look: is given the steps made and the trace so far; says why the run is to be stopped, or
    nothing. wants: whether it would do anything by now; a look in vain costs as much.
    """

    def __init__(self, look: Look, wants: Callable[[], bool] = lambda: True) -> None:
        self._look, self._wants = look, wants
        self._next, self._alarms, self._alarmed = _FIRST, _ALARMS, False
        self._began = self._latest = perf_counter()
        self._spent = 0.0
        self._process = os.getpid()

    def notice(self, event: Event) -> None:
        """See whether a step calls for a look at once: its loss is not finite."""
        if isinstance(event, Step) and event.loss - event.loss != 0 and self._alarms:
            self._alarms -= 1
            self._alarmed = True

    def ask_soon(self) -> None:
        """Have a look after the next step, within the share: an evaluation is over."""
        self._next = 0

    def after_step(self, recorder: "Recorder") -> None:
        """Look, where it is time to; raises Stopped where the run is to end."""
        if recorder.patches.blind or not self._is_due(recorder.steps):
            return
        why, began = "", perf_counter()
        self._alarmed, self._next = False, max(_FIRST, int(recorder.steps * _GROWTH) + 1)
        try:
            trace = recorder.faults.look(_trace_so_far, recorder)
            why = self._look(recorder.steps, trace) if trace is not None else ""
        except Exception as error:  # noqa: BLE001 nothing of ours may raise in the user's code
            recorder.live = None
            recorder.faults.told.append(f"nothing was told while it ran: {describe(error)}")
        self._latest = perf_counter()
        self._spent += self._latest - began
        if why:
            raise Stopped(why)

    def _is_due(self, steps: int) -> bool:
        """Say whether it is time for a look; never in a child that the training forks."""
        now = perf_counter()
        due = steps >= self._next or now - self._latest >= _EVERY
        due &= self._spent <= max(_GRACE, SHARE * (now - self._began))
        return (due or self._alarmed) and self._wants() and os.getpid() == self._process


def _trace_so_far(recorder: "Recorder") -> Trace[Event]:
    """Return the trace of what was kept by now; most of what watchers add up is not in it yet."""
    recorder.store.drain()
    made = tuple(window.name for window in recorder.windows if window.index)
    conditions: dict[str, Plain] = {"steps": recorder.steps, "optimizers": made, "ended": "cut off"}
    conditions |= recorder.faults.as_conditions()
    asked = [(watcher, watcher.so_far) for watcher in recorder.watchers]
    added = [event for watcher, ask in asked for event in recorder.faults.finish(watcher, ask)]
    events = (*recorder.store.in_order(), *added)
    return Trace(recorder.name, events, conditions, recorder.promises)
