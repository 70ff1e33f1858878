"""Watches learning rates: those in force, those that schedulers report, and their advances."""

import linecache
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from types import FrameType
from typing import Any
from zlib import crc32

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from trainguard.events.base import Event
from trainguard.events.loop import Scheduler
from trainguard.observe.loop.watch.rates.planned_epochs import planned_epochs
from trainguard.observe.loop.watch.rates.schedule_plans import (
    find_cut_warmup,
    find_floor,
    plan_length,
    told_expression,
)
from trainguard.observe.loop.watch.said.loggers import number_of
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.heap import kinds
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller, place_of

_ADVANCE = re.compile(r"^[^#]*sched\w*\.step\(", re.IGNORECASE)
_STEP = re.compile(r"([\w\])]+)\.step\b")
_OPTIMIZER = re.compile(r"opt|scaler|prof", re.IGNORECASE)
_METRICS = 256  # of one scheduler
_ADVANCES = 1024  # of which it is known which line has made them
_IN_TURN = 0.9  # of the steps after which a line advances it are followed by another such one


@dataclass(slots=True)
class SchedulerHistory:
    """
    One scheduler: how often it was advanced, and how often before its optimizer's first step.

    full: whether the rates are those of the optimizer when it was made, as before any warmup.
    plan: after how many advances its schedule is over, and the setting that says so.
    cut: where it leaves its warmup too early.
    base: the rates that it multiplies. placed: whether it was told at which epoch it is.
    part: whether another scheduler is made of it. floor: the rate that it anneals to, and the
        highest that it begins with. places: the epochs that it was told. settings, turns, mode,
        expression, planned, place, metrics: as in a Scheduler.
    """

    name: str
    scheduler: weakref.ref[Any]
    window: Window | None
    source: str
    full: bool = False
    plan: tuple[int, str] = (0, "")
    base: tuple[float, ...] = ()
    settings: int = 0
    floor: tuple[float, float] | None = None
    cut: tuple[int, int, int] | None = None
    calls: int = 0
    early: int = 0
    turns: tuple[int, int] = (0, 0)
    advanced: str = ""
    placed: bool = False
    part: bool = False
    mode: str = ""
    expression: str = ""
    planned: tuple[int, ...] = ()
    place: int = 0
    metrics: list[tuple[int, float]] = field(default_factory=list)
    places: list[float] = field(default_factory=list)
    lines: dict[str, list[int]] = field(default_factory=dict)


class Rates(Watcher):
    """
    The columns rates and reported, the word "schedule" in the order, and Scheduler events.

    The Probe event "base rate" is of an optimizer whose last rate is below the one it was made for,
    and "high floor" of a schedule that anneals to a rate above all those that it begins with.
    "cut warmup" is of a sequence whose warmup was left before it had come half of its way.
    "told epochs" is of a scheduler that was told epochs which go back and are no whole numbers.
    "advanced twice": steps after which two lines have advanced one, of all after which one has.
    """

    makes = (
        *("rates", "reported", "order", "Scheduler"),
        *("Probe:base rate", "Probe:high floor", "Probe:cut warmup", "Probe:told epochs"),
        "Probe:advanced twice",
    )

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._seen: dict[int, SchedulerHistory] = {}
        self._advances = 0  # of all schedulers
        self._depth = 0  # above zero inside a constructor or another scheduler
        self._last: dict[int, tuple[Window, float, float]] = {}  # the rate in force, and the base

    def install(self, patches: Patches) -> None:
        """Listen to every class of schedulers that there is, and to those made later."""
        self._patches = patches
        for kind in kinds(LRScheduler):
            self._listen(kind)
            if "__init__" in vars(kind):  # not all of torch's own call the one they inherit
                patches.replace(kind, "__init__", self._wrap_init)

    def histories(self) -> list[SchedulerHistory]:
        """Return what is known of all schedulers."""
        return list(self._seen.values())

    def schedulers(self, optimizer: Optimizer) -> list[Any]:
        """Return the schedulers of an optimizer that are alive."""
        alive = [seen.scheduler() for seen in self._seen.values()]
        return [each for each in alive if getattr(each, "optimizer", None) is optimizer]

    def before_step(self, window: Window) -> Columns:
        """Return the rates that the step is made with."""
        optimizer = window.optimizer() if window.optimizer is not None else None
        if optimizer is None:
            return {}
        rates = tuple(_number(group.get("lr", 0.0)) for group in optimizer.param_groups)
        self._last[id(window)] = window, rates[0], _base_rate(optimizer)
        return {"rates": rates, "reported": self._reported_rates(window, len(rates))}

    def finish(self) -> Iterable[Event]:
        """Return what became of each scheduler."""
        for seen in self._seen.values():
            steps = seen.window is not None and seen.window.index > 0
            yield Scheduler(
                name=seen.name,
                optimizer=seen.window.name if seen.window is not None and steps else "",
                calls=seen.calls,
                early=seen.early,
                conditional=seen.full and _advances(seen.source),
                inert=_is_inert(seen.source),
                length=0 if seen.part or seen.placed else seen.plan[0],
                setting=seen.plan[1],
                base=seen.base,
                settings=0 if seen.part else seen.settings,
                turns=seen.turns,
                advanced=seen.advanced,
                mode=seen.mode,
                expression=seen.expression,
                planned=seen.planned,
                place=seen.place,
                metrics=tuple(seen.metrics),
                source=seen.source,
            )
            yield from self._judge_floor(seen)
            if seen.cut is not None and seen.calls >= seen.cut[0] and not seen.part:
                yield make_probe("cut warmup", *seen.cut[1:], label=seen.name, source=seen.source)
            yield from self._judge_places(seen)
            yield from self._judge_lines(seen)
        for window, rate, base in self._last.values():
            if isinstance(rate, float) and 0 < rate < base:
                yield make_probe("base rate", rate, base, label=window.name)

    def _judge_floor(self, seen: SchedulerHistory) -> Iterable[Event]:
        """Yield the rate that a schedule anneals to, where it begins with a lower one."""
        if seen.floor is not None and seen.calls:
            self.looked.add("high floor")
            if seen.floor[0] > seen.floor[1]:
                yield make_probe("high floor", *seen.floor, label=seen.name, source=seen.source)

    def _judge_places(self, seen: SchedulerHistory) -> Iterable[Event]:
        """Yield what a scheduler was told for an epoch, where it goes back, and is not whole."""
        self.looked |= {"told epochs"} if seen.places else set()
        back = sum(later < one for one, later in pairwise(seen.places))
        parts = sum(not place.is_integer() for place in seen.places)
        if back and parts:
            named = {"step": len(seen.places), "label": f"{seen.name} {seen.expression}".strip()}
            yield make_probe("told epochs", parts, back, source=seen.source, **named)

    def _judge_lines(self, seen: SchedulerHistory) -> Iterable[Event]:
        """Yield the steps after which a second line has advanced a scheduler, too."""
        if seen.placed or not seen.lines:
            return
        self.looked.add("advanced twice")
        if len(seen.lines) == 2:
            seldom, often = sorted(seen.lines, key=lambda line: len(seen.lines[line]))
            twice, once = set(seen.lines[seldom]), set(seen.lines[often])
            in_turn = sum(step + 1 in once for step in once) + 1
            if len(twice) > 1 and twice <= once and in_turn >= _IN_TURN * len(once):
                told = {"label": f"{seen.name}, {often}", "source": seldom}
                yield make_probe("advanced twice", len(twice), len(once), **told)

    def _reported_rates(self, window: Window, groups: int) -> tuple[float, ...]:
        """Return what the scheduler of an optimizer, the latest advanced, says the rates are."""
        for seen in reversed(self._seen.values()):
            scheduler = seen.scheduler()
            if scheduler is None or seen.window is not window:
                continue
            said = getattr(scheduler, "_last_lr", None)
            if isinstance(said, list) and len(said) == groups and seen.calls:
                return tuple(_number(rate) for rate in said)
        return ()

    @shielded
    def _listen(self, kind: type[Any]) -> None:
        """Listen to `step` where a class defines it itself."""
        step = vars(kind).get("step")
        if step is not None and not getattr(step, "__trainguard__", False):
            self._patches.replace(kind, "step", self._wrap_step)

    def _wrap_init(self, make: Callable[..., None]) -> Callable[..., None]:
        """Return an `__init__` that makes the new scheduler known."""

        @wraps(make)
        def wrapper(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            """Make the scheduler; the step that its constructor takes does not count."""
            for kind in type(scheduler).__mro__:
                self._listen(kind)
            self._depth += 1
            try:
                make(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1
            if self.recorder.patches.active and not self._depth:
                self._know(scheduler)

        return wrapper

    def _wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `step` that counts, once for a scheduler that is made of others."""

        @wraps(step)
        def wrapper(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            """Advance the scheduler."""
            outermost = self._depth == 0 and self.recorder.patches.active
            self._depth += 1
            try:
                result = step(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1
            if outermost:
                self._note_step(scheduler, args, kwargs, sys._getframe(1))  # noqa: SLF001
            return result

        wrapper.__trainguard__ = True  # type: ignore[attr-defined]
        return wrapper

    @shielded
    def _know(self, scheduler: Any) -> SchedulerHistory:
        """Return what is known of a scheduler; it is met when made, or when first advanced."""
        seen = self._seen.get(id(scheduler))
        if seen is None or seen.scheduler() is not scheduler:
            optimizer = getattr(scheduler, "optimizer", None)
            seen = self._seen[id(scheduler)] = SchedulerHistory(
                type(scheduler).__name__,
                weakref.ref(scheduler),
                self._window_of(optimizer),
                caller(3),
                _begins_full(scheduler),
                plan_length(scheduler),
                _base_rates(scheduler),
                _sum_settings(scheduler),
                find_floor(scheduler),
                find_cut_warmup(scheduler),
                planned=planned_epochs(),
            )
        return seen

    def _window_of(self, optimizer: Any) -> Window | None:
        """Return the window of the optimizer that a scheduler drives, a wrapped one's too."""
        inner = getattr(optimizer, "optimizer", optimizer)
        return self.recorder.window_of(inner) if isinstance(inner, Optimizer) else None

    def _take_place(self, seen: SchedulerHistory, place: Any, frame: FrameType) -> None:
        """Take down at which epoch a scheduler is told to be, and what the line calls that."""
        value = number_of(place)
        if isinstance(value, float | int) and len(seen.places) < _METRICS:
            seen.expression = seen.expression or told_expression(frame)
            seen.places.append(float(value))

    def _take_metric(self, seen: SchedulerHistory, metric: Any, frame: FrameType) -> None:
        """Take down what a scheduler is told, and what the line that tells it calls that."""
        if not seen.metrics:
            seen.mode, seen.expression = (
                getattr(seen.scheduler(), "mode", ""),
                told_expression(frame),
            )
        value = number_of(metric)
        if isinstance(value, float) and len(seen.metrics) < _METRICS:
            seen.metrics.append((self.recorder.tick(), value))

    @shielded
    def _note_step(self, scheduler: Any, args: Any, kwargs: Any, frame: FrameType) -> None:
        """Note an advance, and what the scheduler was told with it."""
        seen = self._count(scheduler)
        if seen.calls <= _ADVANCES:
            line = place_of(frame)
            seen.advanced = seen.advanced or line
            if seen.window is not None:
                seen.lines.setdefault(line, []).append(seen.window.index)
        seen.placed |= bool(args or kwargs)
        place = getattr(scheduler, "last_epoch", 0)
        seen.place = place if type(place) is int else 0
        if args and isinstance(scheduler, ReduceLROnPlateau):
            self._take_metric(seen, args[0], frame)
        elif args and type(scheduler).__module__ == LRScheduler.__module__:
            self._take_place(seen, args[0], frame)  # the epoch, as its only argument means

    def _count(self, scheduler: Any) -> SchedulerHistory:
        """Count an advance, for the scheduler and for those that it is made of."""
        seen = self._know(scheduler)
        if seen.window is not None:
            seen.window.did("schedule")
            seen.early += seen.window.index == 0
        for inner in getattr(scheduler, "_schedulers", ()):
            part = self._know(inner)
            part.calls, part.part = part.calls + 1, True
        seen.calls += 1
        self._advances += 1
        seen.turns = seen.turns[0] or self._advances, self._advances
        self._seen[id(scheduler)] = self._seen.pop(id(scheduler))  # the latest stands last
        return seen


def _begins_full(scheduler: Any) -> bool:
    """Say whether the rates that a scheduler began with are those that it was given."""
    given, begun = (getattr(scheduler, name, None) for name in ("base_lrs", "_last_lr"))
    return isinstance(given, list) and given == begun


def _base_rates(scheduler: Any) -> tuple[float, ...]:
    """Return the rates that the function of a LambdaLR multiplies, nothing for other kinds."""
    if not isinstance(scheduler, LambdaLR):
        return ()
    rates = [number_of(rate) for rate in scheduler.base_lrs]
    return tuple(rate for rate in rates if isinstance(rate, float))


def _sum_settings(scheduler: Any) -> int:
    """
    Return a checksum of the plain values that a scheduler was made with; 0 where one is a function.

    Its own `state_dict` is not called, and no tensor is read: rates on an accelerator may be some.
    """
    own = {name: vars(scheduler)[name] for name in sorted(vars(scheduler)) if name[:1] != "_"}
    if any("lambda" in name or callable(value) for name, value in own.items()):
        return 0
    plain = {name: value for name, value in own.items() if _is_plain(value)}
    return crc32(f"{type(scheduler).__name__} {plain}".encode())


def _is_plain(value: Any) -> bool:
    """Say whether a value is a number or a word, or a few of them (milestones)."""
    entries = value if isinstance(value, list | tuple | dict) else [value]
    return all(isinstance(entry, int | float | str) for entry in entries)


def _base_rate(optimizer: Optimizer) -> float:
    """Return the rate that the first group had before any schedule; 0 where that is unknown."""
    made = optimizer.defaults.get("lr", 0.0)
    base = optimizer.param_groups[0].get("initial_lr", made)
    return base if isinstance(base, float) else 0.0


def _is_inert(source: str) -> bool:
    """Say whether the file of a `file:line` has no line that could advance a scheduler."""
    lines = linecache.getlines(source.rpartition(":")[0])
    steps = [found[1] for line in lines for found in _STEP.finditer(line)]
    return bool(lines) and all(_OPTIMIZER.search(name) for name in steps)


def _advances(source: str) -> bool:
    """Say whether the file of a `file:line` has a line that advances some scheduler."""
    return any(_ADVANCE.match(line) for line in linecache.getlines(source.rpartition(":")[0]))


def _number(rate: Any) -> Any:
    """Return a rate as a number; one on an accelerator as a copy, since it changes in place."""
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else rate.detach().clone()
    return float(rate)
