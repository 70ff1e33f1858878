"""Replay a schedule: stopped and resumed, with schedulers left out, and on metrics of all kinds."""

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterator
from math import nan
from typing import Any

import torch

from trainguard.core.errors import Unjudged
from trainguard.events.trace import Tick
from trainguard.observe.schedule.drive import Drive, Setting, Stepped, start, ticks
from trainguard.observe.tools.patches import tell_before
from trainguard.subjects.schedule import Schedule

Metrics = Callable[[int], float]
DEFAULT_TOTAL = 1000
_DEFAULT_PATIENCE = 10
_LONGEST_REPLAY = 20_000  # steps: a run may be long, and these probes drive it several times


def declared_metrics(schedule: Schedule) -> Metrics:
    """Return the declared metrics, the last one held; without any, metrics that improve."""
    given = schedule.metrics
    if given:
        return lambda step: given[min(step, len(given) - 1)]
    return improving(schedule.mode, 10)


def flat(_mode: str, _patience: int) -> Metrics:
    """Return a metric that never changes."""
    return lambda _step: 100.0


def improving(mode: str, patience: int) -> Metrics:
    """
    Return a metric that improves by a tenth, eight times within the patience.

    So few and large improvements keep clear of any threshold, relative or absolute, even where a
    patience of a thousand metrics makes the sequence long.
    """
    factor = 1.1 if mode == "max" else 0.9
    every = max(1, patience // 8)
    return lambda step: 100.0 * factor ** min(step // every, 1000)


def below_zero(metrics: Callable[[str, int], Metrics]) -> Callable[[str, int], Metrics]:
    """Return the same sequence mirrored at zero, so that it improves in the same mode."""

    def mirror(mode: str, patience: int) -> Metrics:
        """Return the mirror image of the sequence of the opposite mode."""
        positive = metrics("min" if mode == "max" else "max", patience)
        return lambda step: -positive(step)

    return mirror


def after_one_nan(metrics: Callable[[str, int], Metrics]) -> Callable[[str, int], Metrics]:
    """Return the same sequence with a nan as its first metric."""

    def spoilt(mode: str, patience: int) -> Metrics:
        """Return the spoilt sequence."""
        clean = metrics(mode, patience)
        return lambda step: nan if step == 0 else clean(step)

    return spoilt


# The names are the phases of the trace.
SEQUENCES: dict[str, Callable[[str, int], Metrics]] = {
    "flat": flat,
    "improving": improving,
    "negative and flat": below_zero(flat),
    "negative and improving": below_zero(improving),
    "nan, then flat": after_one_nan(flat),
    "nan, then improving": after_one_nan(improving),
}


def run(schedule: Schedule, setting: Setting, case: int) -> Iterator[Tick]:
    """Drive the schedule through the whole run."""
    drive = start(schedule, setting)
    metrics = declared_metrics(schedule)
    yield from ticks(drive, range(length(schedule, setting, drive)), metrics, "run", case=case)


def length(schedule: Schedule, setting: Setting, drive: Drive) -> int:
    """Return how many steps a run has: the total, no further than the schedule's own end."""
    total = setting.get("total", schedule.total) or len(schedule.metrics) or drive.end
    total = DEFAULT_TOTAL if total is None else int(total)
    return total if drive.end is None else min(total, drive.end)


def resume(schedule: Schedule, setting: Setting, case: int) -> Iterator[Tick]:
    """Drive the schedule, saving its state on the way; then resume from each state saved."""
    drive = start(schedule, setting)
    if not isinstance(drive, Stepped):
        return  # a function of the step has no state
    steps, metrics = range(length(schedule, setting, drive)), declared_metrics(schedule)
    points = {int(setting.get("warmup", schedule.warmup) or 0) // 2, len(steps) // 2}
    if drive.is_fed:  # flat, and saved while the rule is counting
        patience = _patience(schedule, setting)
        steps, metrics = range(4 * (patience + 2)), flat(schedule.mode, patience)
        points = {patience + 1 + (patience + 1) // 2}
    saved: dict[int, bytes | str] = {}
    for tick in ticks(drive, steps, metrics, "run", case=case):
        if tick.step in points - {0}:
            saved[tick.step] = _save(drive)
        yield tick
    for point, state in saved.items():
        rest = steps[point : point + _LONGEST_REPLAY]
        yield from _resume(schedule, setting, rest, metrics, state, case)


def _save(drive: Stepped) -> bytes | str:
    """Return the state of optimizers and schedulers as a file's bytes, or what went wrong."""
    states = [
        part.state_dict() if hasattr(part, "state_dict") else None
        for part in (*drive.optimizers, *drive.schedulers)
    ]
    file = io.BytesIO()
    try:
        torch.save(states, file)
    except Exception as error:  # noqa: BLE001  # whatever keeps the state from being saved is told
        return f"{type(error).__name__}: {error}"
    return file.getvalue()


def _resume(
    schedule: Schedule, setting: Setting, steps: range, metrics: Metrics, state: bytes | str,
    case: int,
) -> Iterator[Tick]:  # fmt: skip
    """Drive a schedule that is built anew and given the saved state."""
    label = f"saved at step {steps[0]}"
    if isinstance(state, str):
        yield Tick(case, phase="unsaved", step=steps[0], rates=(), label=state)
        return
    drive = start(schedule, setting)
    assert isinstance(drive, Stepped)
    phase = "resumed"
    try:
        # The file is our own; weights_only would refuse what schedulers legitimately keep.
        states = torch.load(io.BytesIO(state), weights_only=False)
        for part, own in zip((*drive.optimizers, *drive.schedulers), states, strict=True):
            if own is None:
                phase = "rebuilt"
            else:
                part.load_state_dict(own)
    except Exception as error:  # noqa: BLE001
        told = f"{type(error).__name__}: {error}"
        yield Tick(case, phase="unloaded", step=steps[0], rates=(), label=told)
        return
    yield from ticks(drive, steps, metrics, phase, label, case)


def overwrite(schedule: Schedule, setting: Setting, case: int) -> Iterator[Tick]:
    """Drive several schedulers together, then with each one left out, and each one alone."""
    drive = start(schedule, setting)
    if not isinstance(drive, Stepped) or len(drive.schedulers) < 2:
        return
    patience = _patience(schedule, setting)
    least = 3 * (patience + 2) if drive.is_fed else 0
    steps = range(max(min(length(schedule, setting, drive), _LONGEST_REPLAY), least))
    metrics = flat(schedule.mode, patience)
    calls: Counter[int] = Counter()
    for index, scheduler in enumerate(drive.schedulers):
        _intercept(scheduler, tell_before(functools.partial(_count_call, calls, index)))
    yield from ticks(drive, steps, metrics, "together", case=case)
    stepped = [i for i in range(len(drive.schedulers)) if calls[i]]
    names = _names(drive.schedulers)
    plans = [("still", "", set(stepped))]
    for i in stepped:
        plans += [("alone", names[i], set(stepped) - {i}), ("without", names[i], {i})]
    for phase, label, silent in plans if len(stepped) > 1 else []:
        drive = start(schedule, setting)
        assert isinstance(drive, Stepped)
        for index in silent:
            _intercept(drive.schedulers[index], lambda _method: _silence)
        yield from ticks(drive, steps, metrics, phase, label, case)


def _intercept(scheduler: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper around the methods by which one scheduler object is advanced."""
    for name in ("step", "step_update"):
        method = getattr(scheduler, name, None)
        if callable(method):
            try:
                setattr(scheduler, name, wrap(method))
            except AttributeError:
                reason = f"{type(scheduler).__name__} has slots, and cannot be left out"
                raise Unjudged(reason) from None


def _count_call(calls: "Counter[int]", index: int, *_: Any, **__: Any) -> None:
    """Count one call of a method."""
    calls[index] += 1


def _silence(*_: Any, **__: Any) -> None:
    """Stand in for the step of a scheduler that is left out."""


def _names(schedulers: list[Any]) -> list[str]:
    """Name the schedulers after their classes, with a number where a class repeats."""
    classes = [type(scheduler).__name__ for scheduler in schedulers]
    return [
        name if classes.count(name) == 1 else f"{name} {classes[: i + 1].count(name)}"
        for i, name in enumerate(classes)
    ]


def plateau(schedule: Schedule, setting: Setting, case: int) -> Iterator[Tick]:
    """Drive a plateau rule on metrics that stand still or improve, negative and after a nan too."""
    patience = _patience(schedule, setting)
    for phase, sequence in SEQUENCES.items():
        drive = start(schedule, setting)
        if not drive.is_fed:
            raise Unjudged(f"`{schedule.name}` is fed no metric: its step() takes none")
        metrics = sequence(schedule.mode, patience)
        yield from ticks(drive, range(2 * (patience + 2) + 2), metrics, phase, case=case)


def _patience(schedule: Schedule, setting: Setting) -> int:
    """Return the patience that is promised, or a common one."""
    promised = setting.get("patience", schedule.patience)
    return _DEFAULT_PATIENCE if promised is None else int(promised)
