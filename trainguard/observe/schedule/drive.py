"""Drive a declared schedule as its training loop would: build it, read its rates, advance it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch
from torch.optim import Optimizer

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Tick
from trainguard.subjects.schedule import Schedule

Setting = Mapping[str, Any]
Rates = tuple[float, ...]

_METRICS = {"metric", "metrics", "loss", "val_loss", "train_loss", "value", "score", "current"}


@contextmanager
def blaming(schedule: Schedule, doing: str) -> Iterator[None]:
    """Blame the subject for what its own code raises, with its traceback kept as the cause."""
    try:
        yield
    except SubjectError:
        raise
    except Exception as error:
        first, *_ = [*str(error).strip().splitlines(), ""]
        way = "the traceback below is the schedule's own"
        if "step" in doing and not {"total"} & schedule.promise_names:
            way = f"if it ends there, promise total=...; {way}"
        raise SubjectError(f"it raised {type(error).__name__} {doing}: {first}", way) from error


@dataclass
class Formula:
    """A schedule that is a function of the step: nothing to advance, no state, no optimizer."""

    schedule: Schedule
    function: Callable[[int], Any]
    is_fed: bool = False
    end: int | None = None

    def rates(self, step: int) -> Rates:
        """Call the function; it may return one rate, or one for each parameter group."""
        with blaming(self.schedule, f"at step {step}"):
            returned = self.function(step)
        several = returned if isinstance(returned, list | tuple) else [returned]
        return tuple(_rate(value, step) for value in several)

    def reported_rates(self) -> Rates:
        """Return nothing: a function reports no rate but the one it returns."""
        return ()

    def advance(self, step: int, metric: float) -> None:
        """Do nothing: the next step is an argument of the next call."""


@dataclass
class Stepped:
    """One or several scheduler objects on the optimizers that they set the rates of."""

    schedule: Schedule
    optimizers: list[Optimizer]
    schedulers: list[Any]
    built: Any
    _wants: dict[int, tuple[int, str]] = field(default_factory=dict)

    @property
    def is_fed(self) -> bool:
        """Whether a metric is fed at every advance."""
        if self.schedule.advance is not None:
            return _positional(self.schedule.advance) > 2
        return any(_metric_of(self.schedule, s.step) for s in self.schedulers if _steps(s))

    @property
    def end(self) -> int | None:
        """The step at which the schedule refuses to go on, where it says so (OneCycleLR)."""
        totals = [getattr(scheduler, "total_steps", None) for scheduler in self.schedulers]
        return min((int(total) for total in totals if isinstance(total, int)), default=None)

    def rates(self, step: int) -> Rates:
        """Return the rates of all parameter groups as they stand in the optimizers."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        return tuple(_rate(group["lr"], step) for group in groups)

    def reported_rates(self) -> Rates:
        """Return what a single scheduler says the rates are; of several, no one's word is known."""
        if len(self.schedulers) != 1 or not hasattr(self.schedulers[0], "get_last_lr"):
            return ()
        try:
            return tuple(float(rate) for rate in self.schedulers[0].get_last_lr())
        except (AttributeError, TypeError):  # torch sets _last_lr at the first step only, at times
            return ()

    def advance(self, step: int, metric: float) -> None:
        """Do what a training loop does after a step: the optimizers first, then the schedulers."""
        with blaming(self.schedule, f"at step {step}"):
            for optimizer in self.optimizers:
                optimizer.step()
            if self.schedule.advance is not None:
                known = (self.built, step, metric)
                self.schedule.advance(*known[: max(2, _positional(self.schedule.advance))])
                return
            for scheduler in self.schedulers:
                self._advance_one(scheduler, step, metric)

    def _advance_one(self, scheduler: Any, step: int, metric: float) -> None:
        """Call a scheduler's `step_update` or `step` with what its signature asks for."""
        if self.schedule.unit == "step" and hasattr(scheduler, "step_update"):
            scheduler.step_update(step + 1)
            return
        if id(scheduler) not in self._wants:
            self._wants[id(scheduler)] = self._inspect_method(scheduler.step)
        counts, fed = self._wants[id(scheduler)]
        scheduler.step(*[step + 1] * counts, **({fed: metric} if fed else {}))

    def _inspect_method(self, method: Callable[..., Any]) -> tuple[int, str]:
        """Return how many counts of steps a method needs, and its parameter for a metric."""
        fed = _metric_of(self.schedule, method)
        needed = [
            p
            for p in inspect.signature(method).parameters.values()
            if p.default is p.empty
            and p.name != fed
            and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return len(needed), fed


Drive = Formula | Stepped


def start(schedule: Schedule, setting: Setting) -> Drive:
    """Build the schedule anew, with its optimizer, in one setting."""
    feed, name = schedule.feed
    keywords = {**schedule.arguments, **setting}
    if feed == "step":
        return Formula(schedule, lambda step: schedule.build(**keywords, **{name: step}))
    own = None
    if feed == "optimizer":
        own = _optimizer(schedule, setting)
        keywords[name] = own
    with blaming(schedule, "when it was built"):
        built = schedule.build(**keywords)
    parts = list(_parts(built))
    functions = [p for p in parts if callable(p) and not _steps(p) and not hasattr(p, "optimizer")]
    if len(parts) == 1 and functions:
        return Formula(schedule, functions[0])
    optimizers = [part for part in parts if isinstance(part, Optimizer)]
    schedulers = [part for part in parts if not isinstance(part, Optimizer)]
    _check_schedulers(schedule, built, optimizers, schedulers)
    return Stepped(schedule, _all_optimizers(own, optimizers, schedulers), schedulers, built)


def ticks(
    drive: Drive, steps: range, metrics: Callable[[int], float], phase: str, label: str = "",
    case: int = 0,
) -> Iterator[Tick]:  # fmt: skip
    """Yield one tick for each step, and advance the schedule between them."""
    fed = drive.is_fed
    for step in steps:
        metric = metrics(step)
        yield Tick(
            case,
            phase=phase,
            step=step,
            rates=drive.rates(step),
            reported=drive.reported_rates(),
            metric=metric if fed else nan,
            label=label,
        )
        if step != steps[-1]:
            drive.advance(step, metric)


def call(schedule: Schedule, setting: Setting, step: int) -> str:
    """Write the call that builds the schedule, or computes its rate, as code to be pasted."""
    feed, name = schedule.feed
    given = {**schedule.arguments, **setting}
    written = [f"{key}={_short(key, value)}" for key, value in given.items()]
    first = ["optimizer"] if feed == "optimizer" else []
    last = [f"{name}={step}"] if feed == "step" else []
    callee = getattr(schedule.build, "__name__", "")
    callee = callee if callee.isidentifier() else schedule.name
    return f"{callee}({', '.join([*first, *written, *last])})"


def _short(name: str, value: object) -> str:
    """Write a value as code, or as its parameter's name where it is too long to read."""
    code = getattr(value, "__name__", None) or repr(value)
    return code if len(code) <= 80 and "<" not in code else name


def _optimizer(schedule: Schedule, setting: Setting) -> Optimizer:
    """Return the subject's own optimizer, or AdamW at the base rate over one tiny parameter."""
    if schedule.optimizer is None:
        rate = schedule.base_rate or setting.get("peak") or schedule.peak or 1e-3
        return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    with blaming(schedule, "in optimizer()"):
        made = schedule.optimizer()
    if not isinstance(made, Optimizer):
        raise SubjectError(
            f"its optimizer() returned {_describe(made)}, not an optimizer",
            "return a torch.optim.Optimizer",
        )
    return made


def _parts(built: Any) -> Iterator[Any]:
    """Yield the schedulers and optimizers in what `build` returned, at any depth."""
    if isinstance(built, Mapping):
        yield from _parts([part for part in built.values() if not isinstance(part, str | int)])
    elif isinstance(built, list | tuple):
        for part in built:
            yield from _parts(part)
    elif built is not None:
        yield built


def _check_schedulers(
    schedule: Schedule, built: Any, optimizers: list[Optimizer], schedulers: list[Any]
) -> None:
    """Raise where what `build` returned is nothing that sets a rate."""
    strange = [s for s in schedulers if not (_steps(s) or schedule.advance is not None)]
    if strange or not (optimizers or schedulers):
        raise SubjectError(
            f"it returned {_describe(strange[0] if strange else built)}, not a scheduler",
            "return an object with step(), several in a list, or a function of the step",
        )


def _all_optimizers(
    own: Optimizer | None, returned: list[Optimizer], schedulers: Iterable[Any]
) -> list[Optimizer]:
    """Return every optimizer whose rates are set, each once; ours where no other is found."""
    held = [getattr(scheduler, "optimizer", own) for scheduler in schedulers]
    found = [o for o in (*returned, *held) if isinstance(o, Optimizer)]
    unique = list({id(optimizer): optimizer for optimizer in found}.values())
    if not unique and own is None:
        raise SubjectError(
            "it returned a scheduler without its optimizer",
            "return both, or take the optimizer as a parameter",
        )
    return unique or [own] if own is not None else unique


def _steps(scheduler: object) -> bool:
    """Say whether an object is advanced by `step` or `step_update`."""
    return any(callable(getattr(scheduler, name, None)) for name in ("step", "step_update"))


def _metric_of(schedule: Schedule, step: Callable[..., Any]) -> str:
    """Return the parameter of `step` that takes a metric, where one is to be given."""
    for p in inspect.signature(step).parameters.values():
        needed = p.default is p.empty or schedule.shape == "plateau" or bool(schedule.metrics)
        if p.name in _METRICS and needed:
            return p.name
    return ""


def _positional(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a callable takes."""
    accepted = inspect.signature(function).parameters.values()
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in accepted)


def _rate(value: Any, step: int) -> float:
    """Return a rate as a number, or say what it is instead."""
    if not isinstance(value, str | bool | None):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise SubjectError(
        f"its rate at step {step} is {_describe(value)}, not a number",
        "return the rate as a number",
    )


def _describe(value: object) -> str:
    """Describe a value that should have been something else in a few words."""
    return "None" if value is None else f"the {type(value).__name__} {value!r:.40}"
