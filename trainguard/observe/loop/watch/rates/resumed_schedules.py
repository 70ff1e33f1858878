"""Watches runs that go on from a file: whether the schedule in the file goes on too."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.rates.rates import Rates
from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches, tell_after
from trainguard.observe.tools.user_line import caller, user_frames
from trainguard.observe.tools.written_calls import follows_a_set_rate

_ADVANCED = 2  # advances in the file, at least: a schedule that has hardly begun loses nothing
_NEAR = 2  # times as far from the rate of the state as from its own beginning: it is a new one
_SMALL = 0.05  # of the rate: what decays slowly is not told from what begins anew
_MOST = 16  # optimizers that are loaded
_PLANS = ("initial_lr", "max_lr", "min_lr")
_COUNTERS = {
    "last_epoch",
    "best",
    "num_bad_epochs",
    "cooldown_counter",
    "_step_count",
    "_last_lr",
    "_get_lr_called_within_step",
    "_is_initial",
    "_schedulers",
}


@dataclass(slots=True)
class _ReadSchedule:
    """A schedule's state that was read, the optimizers loaded since, and the step that was due."""

    state: dict[str, Any]
    step: int
    source: str
    optimizers: "list[weakref.ref[Optimizer]]" = field(default_factory=list)


@dataclass(slots=True)
class _Overtaken:
    """
    A schedule that had hardly begun as its optimizer was loaded.

    rate: that of the state. made: how many steps the optimizer had made here by then.
    """

    optimizer: "weakref.ref[Optimizer]"
    scheduler: "weakref.ref[Any]"
    advanced: int
    own_rate: float
    rate: float
    source: str
    made: int
    stepped: bool = False


@dataclass(slots=True)
class _ReplacedRate:
    """
    A rate that was loaded into an optimizer, in the place of that which it was made with.

    begun: the rate that a schedule began with in the state, where that is another one. is_set:
        whether the lines before the load have set the one that it takes the place of.
    """

    optimizer: "weakref.ref[Optimizer]"
    own: float
    loaded: float
    begun: str
    source: str
    is_set: bool = False
    steps: int = 0
    stays: bool = True


class ResumedSchedules(Watcher):
    """
    The Probe event "resumed": a schedule that begins anew beside an optimizer that goes on.

    The Probe event "resumed rate": the first rate of such a schedule, where no state of one is
    known: as far from the rate that was loaded as its own beginning is.

    The Probe event "loaded rate": a rate that was loaded into an optimizer that was made with
    another, and that no schedule drives. measured: it, and reference: that of the optimizer as it
    was made; step: how many steps it has made with it; label: that which a schedule of the state
    had begun with, where it is another one.
    """

    makes = ("Probe:resumed", "Probe:resumed rate", "Probe:loaded rate")
    relies_on = ("Rates",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._read: list[_ReadSchedule] = []
        self._found: list[Probe] = []
        self._overtaken: list[_Overtaken] = []
        self._replaced: list[_ReplacedRate] = []

    def install(self, patches: Patches) -> None:
        """Listen to files that are read, and to optimizers that are loaded."""
        self._rates = self.recorder.watcher(Rates)
        patches.replace(torch, "load", tell_after(self._see_loaded))
        patches.replace(Optimizer, "load_state_dict", self._restores)

    def before_step(self, window: Window) -> Columns:
        """Compare the schedules of an optimizer that goes on with what was read with it."""
        if self._read and window.optimizer is not None:
            read, self._read = self._read, []
            optimizer = window.optimizer()
            with suppress(Exception):  # whatever somebody's schedulers do when they are looked at
                for one in read:
                    own = any(ref() is optimizer for ref in one.optimizers)
                    if optimizer is not None and own and one.step == self.recorder.steps:
                        self._compare(one, optimizer)
        for replaced in self._replaced if window.optimizer is not None else ():
            with suppress(Exception):
                self._see_rate(replaced, window)
        if self._overtaken and window.optimizer is not None:
            optimizer = window.optimizer()
            with suppress(Exception):
                self._overtaken = [
                    one
                    for one in self._overtaken
                    if one.optimizer() is not optimizer or self._waits(one, window.index)
                ]
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        yield from self._found
        for one in self._replaced:
            if one.stays:
                yield Probe(
                    probe="lost rate" if one.is_set else "loaded rate",
                    measured=one.loaded,
                    reference=one.own,
                    step=one.steps,
                    label=one.begun,
                    source=one.source,
                )

    def _see_rate(self, one: "_ReplacedRate", window: Window) -> None:
        """See whether a rate that was loaded is still that of an optimizer without a schedule."""
        optimizer = one.optimizer()
        steps = window.optimizer() if window.optimizer is not None else None
        if optimizer is not None and steps is optimizer:
            one.steps += 1
            rate = float(optimizer.param_groups[0]["lr"])
            one.stays &= rate == one.loaded and not self._rates.schedulers(optimizer)

    def _compare(self, read: _ReadSchedule, optimizer: Optimizer) -> None:
        """Tell of the schedule that is configured as the one in the file, and begins anew."""
        done = read.state["last_epoch"]
        for scheduler in self._rates.schedulers(optimizer):
            state = scheduler.state_dict()
            if state.keys() == read.state.keys() and _settings(state) == _settings(read.state):
                self.looked.add("resumed")
                if state["last_epoch"] < done:
                    probe = Probe(
                        probe="resumed",
                        measured=float(state["last_epoch"]),
                        reference=float(done),
                        step=self.recorder.steps,
                        label=type(scheduler).__name__,
                        source=read.source,
                    )
                    self._found.append(probe)
                return

    def _waits(self, one: _Overtaken, made: int) -> bool:
        """Say whether a schedule has not advanced yet; tell of it once it has, after a step."""
        scheduler, optimizer = one.scheduler(), one.optimizer()
        if scheduler is None or optimizer is None:
            return False
        rate = float(optimizer.param_groups[0]["lr"])
        ahead = scheduler.last_epoch - one.advanced
        if ahead == 0:
            one.stepped |= rate == one.rate
            return rate == one.rate  # else it was set by hand
        self.looked.add("resumed")
        jump = abs(rate - one.rate)
        near = jump <= _NEAR * abs(rate - one.own_rate) or jump <= _SMALL * max(rate, one.rate)
        if ahead == 1 and (one.stepped or made > one.made) and not near:
            probe = Probe(
                probe="resumed rate",
                measured=rate,
                reference=one.rate,
                step=self.recorder.steps,
                label=type(scheduler).__name__,
                source=one.source,
            )
            self._found.append(probe)
        return False

    @shielded
    def _see_loaded(self, found: Any, /, *_: Any, **__: Any) -> None:
        """Remember the schedules in what a `torch.load` has read."""
        if self.recorder.patches.active and isinstance(found, Mapping):
            self._note_schedules(found)

    @shielded
    def _note_schedules(self, found: Mapping[Any, Any]) -> None:
        """Take down the schedules in what was read."""
        states = [state for state in found.values() if _is_schedule(state)]
        source = caller() if states else ""
        step = self.recorder.steps
        self._read += [_ReadSchedule(dict(state), step, source) for state in states]

    def _restores(self, restore: Callable[..., Any]) -> Callable[..., Any]:
        """Return an `Optimizer.load_state_dict` that tells which optimizer goes on."""

        @wraps(restore)
        def wrapper(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            """Load the state."""
            own = [_plan(group) for group in optimizer.param_groups]
            rate = optimizer.param_groups[0]["lr"]
            result = restore(optimizer, *args, **kwargs)
            if self.recorder.patches.active:
                self._note_optimizer(optimizer, own)
                self._note_rate(optimizer, rate)
            return result

        return wrapper

    @shielded
    def _note_rate(self, optimizer: Optimizer, own: Any) -> None:
        """Take down that an optimizer was given another rate; own: that which it was made with."""
        group, new = optimizer.param_groups[0], not self.recorder.window_of(optimizer).index
        loaded, given = float(group["lr"]), float(own)
        self.looked.add("loaded rate")
        frame = next(user_frames(1), None)
        is_set = frame is not None and follows_a_set_rate(frame.f_code, frame.f_lineno)
        may_be = optimizer.state and loaded != given and len(self._replaced) < _MOST
        if may_be and (new or is_set):
            begun = group.get("initial_lr")
            told = f"{float(begun):g}" if begun is not None and float(begun) != given else ""
            place = weakref.ref(optimizer), given, loaded, told, caller(), is_set
            self._replaced.append(_ReplacedRate(*place))

    @shielded
    def _note_optimizer(self, optimizer: Optimizer, own: list[dict[str, Any]]) -> None:
        """Take down that an optimizer was loaded; own: its groups' plans before that."""
        for read in self._read:
            read.optimizers.append(weakref.ref(optimizer))
        loaded = [_plan(group) for group in optimizer.param_groups]
        rate = float(optimizer.param_groups[0]["lr"])
        if not optimizer.state or not rate or not own[0] or own != loaded:
            return  # nothing goes on, or with another plan
        for scheduler in self._rates.schedulers(optimizer):
            if scheduler.last_epoch < _ADVANCED:
                begins = float(scheduler.get_last_lr()[0])
                place = weakref.ref(optimizer), weakref.ref(scheduler), scheduler.last_epoch
                made = self.recorder.window_of(optimizer).index
                self._overtaken.append(_Overtaken(*place, begins, rate, caller(), made))


def _plan(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what schedulers have written down in a group of parameters, of their own plans."""
    return {name: group[name] for name in _PLANS if name in group}


def _is_schedule(state: Any) -> bool:
    """Say whether something is the state of a schedule that has advanced."""
    advanced = state.get("last_epoch") if isinstance(state, dict) else None
    return isinstance(advanced, int) and advanced >= _ADVANCED and "_last_lr" in state


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schedule was configured with."""
    return {name: value for name, value in state.items() if name not in _COUNTERS}
