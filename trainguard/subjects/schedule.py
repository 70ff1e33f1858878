"""The subject `Schedule`: the learning rate as a function of the step."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.events.base import Plain
from trainguard.subjects.subject import Subject, check_callable, check_word, is_strategy, parameters

Shape = Literal["constant", "warmup-decay", "warmup-constant", "restarts", "one-cycle", "plateau"]
Feed = Literal["optimizer", "step", "nothing"]

NUMBERS = ("peak", "floor", "total", "warmup", "patience", "steps_per_epoch")
_OPTIMIZERS = {"optimizer", "optimiser", "optim", "opt"}
_STEPS = {"step", "epoch", "iteration", "iter", "it", "t", "i", "n", "s", "x", "update"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule(Subject):
    """
    A learning-rate schedule: a function that builds one, or a plain function of the step.

    build(optimizer, ...) returns a scheduler or several, each with `step()`, or with `step(epoch)`
    and `step_update(update)`; build() returns them with their optimizer. A function of `step` (or
    `epoch`, `it`, ...) returns the rate itself. What is not promised is not judged.

    arguments: fixed values for further parameters of `build`.
    vary: {parameter: strategy}, drawn by Hypothesis; parameters named total, warmup, peak and
        floor count as promises for that draw.
    shape: "constant", "warmup-decay", "warmup-constant", "restarts", "one-cycle" or "plateau".
    base_rate: the rate that the optimizer is built with.
    peak, floor: the highest rate, and the lowest after the warmup.
    total, warmup: lengths in `unit`s.
    unit: "step" or "epoch": how often the training loop advances the schedule.
    steps_per_epoch: optimizer steps in an epoch, where that is to be judged.
    patience, mode: of a plateau rule: how many bad metrics it waits, and which way is better.
    metrics: the metrics fed to a plateau rule, one per advance; they also say whether it meets
        negative ones.
    optimizer: a factory of the optimizer, for several parameter groups; AdamW where not given.
    advance: advance(schedulers, step) or advance(schedulers, step, metric), where the loop does
        more than call `step()` on each.
    """

    family: ClassVar[str] = "schedule"

    build: Callable[..., Any] = field(kw_only=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape | None = None
    base_rate: float | None = None
    peak: float | None = None
    floor: float | None = None
    total: int | None = None
    warmup: int | None = None
    unit: Literal["step", "epoch"] = "step"
    steps_per_epoch: int | None = None
    patience: int | None = None
    mode: Literal["min", "max"] = "min"
    metrics: tuple[float, ...] = ()
    optimizer: Callable[[], Any] | None = None
    advance: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        """Declare a schedule; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        check_callable("Schedule", self.build)
        name = self.name or getattr(self.build, "__name__", type(self.build).__name__)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "metrics", tuple(self.metrics))
        _check_promises(self)
        _check_arguments(self)
        super().__post_init__()

    @property
    def promise_names(self) -> frozenset[str]:
        """The promises made, by the names that invariants need."""
        made = {name for name in NUMBERS if getattr(self, name) is not None or name in self.vary}
        return frozenset(made | ({self.shape, "shape"} if self.shape is not None else set()))

    @property
    def promises(self) -> dict[str, Plain]:
        """The promises as plain values, for the header of a trace."""
        names = (*NUMBERS, "shape", "unit", "mode", "base_rate", "metrics")
        return {**super().promises, **{name: getattr(self, name) for name in names}}

    @property
    def feed(self) -> tuple[Feed, str]:
        """What `build` is called with, and the parameter that takes it; raises where unclear."""
        free = _free_parameters(self)
        takers = [p.name for p in free if _takes_optimizer(p)]
        needed = [p for p in free if p.default is p.empty and p.name not in takers]
        steps = [p.name for p in needed if p.name in _STEPS or p.name.endswith("_step")]
        if len(takers) == 1 and not needed:
            return "optimizer", takers[0]
        if not takers and len(steps) == 1 and len(needed) == 1:
            return "step", steps[0]
        if not takers and not needed:
            return "nothing", ""
        raise DeclarationError(_unclear(self, [*takers, *(p.name for p in needed)]))


def _free_parameters(schedule: Schedule) -> list[inspect.Parameter]:
    """List the parameters of `build` that are neither drawn nor given."""
    try:
        accepted = inspect.signature(schedule.build).parameters.values()
    except (TypeError, ValueError):
        return []
    given = {*schedule.arguments, *schedule.vary}
    return [
        p
        for p in accepted
        if p.name not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _takes_optimizer(parameter: inspect.Parameter) -> bool:
    """Say whether a parameter is meant for the optimizer, by its name or its annotation."""
    annotation = parameter.annotation
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name in _OPTIMIZERS or "Optimizer" in written


def _unclear(schedule: Schedule, names: list[str]) -> str:
    """Say that it is not clear how `build` is to be called."""
    given = ", ".join(f"{name!r}: ..." for name in names if name not in _OPTIMIZERS | _STEPS)
    way = f" Put what is fixed into arguments={{{given}}}," if given else " Keep one of them,"
    return (
        f"tg.Schedule cannot tell how to call {schedule.name}({', '.join(names)})."
        f"{way} and call the rest `optimizer` or `step`."
    )


def _check_promises(schedule: Schedule) -> None:
    """Raise for promises of a schedule that cannot be meant."""
    if schedule.shape is not None:
        check_word("shape", [schedule.shape], get_args(Shape))
    check_word("unit", [schedule.unit], ("step", "epoch"))
    check_word("mode", [schedule.mode], ("min", "max"))
    for name in (*NUMBERS, "base_rate"):
        _check_number(schedule, name)
    for value in schedule.metrics:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DeclarationError(
                f"tg.Schedule(metrics=...) has {value!r}, which is no number. Give numbers only."
            )
    _check_order(schedule, "floor", "peak")
    _check_order(schedule, "warmup", "total")


def _check_number(schedule: Schedule, name: str) -> None:
    """Raise where a promised number is none, is too low, or is a broken count."""
    value = getattr(schedule, name)
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in ("floor", "warmup", "patience"):
        allowed, holds = "zero or a number above it", is_number and value >= 0
    else:
        allowed, holds = "a number above zero", is_number and value > 0
    if not holds:
        raise DeclarationError(f"tg.Schedule({name}={value!r}) cannot be. Give {allowed}.")
    if name not in ("peak", "floor", "base_rate") and int(value) != value:
        raise DeclarationError(
            f"tg.Schedule({name}={value!r}) is a count that is not whole. Round it."
        )


def _check_order(schedule: Schedule, lower: str, upper: str) -> None:
    """Raise where the promise that must be the lower is above the other."""
    least, most = getattr(schedule, lower), getattr(schedule, upper)
    if least is not None and most is not None and least > most:
        raise DeclarationError(
            f"tg.Schedule({lower}={least}, {upper}={most}) has a {lower} above its {upper}."
            " Swap them, or leave one out."
        )


def _check_arguments(schedule: Schedule) -> None:
    """Raise for arguments that `build` does not take, or that do not go together."""
    accepted = parameters(schedule.build)
    for name in (*schedule.vary, *schedule.arguments):
        if accepted is not None and name not in accepted:
            raise DeclarationError(
                f"{schedule.name} takes no argument {name!r}.{did_you_mean(name, accepted)}"
            )
    for name, strategy in schedule.vary.items():
        if not is_strategy(strategy):
            raise DeclarationError(
                f"tg.Schedule(vary={{{name!r}: {strategy!r}}}) is no Hypothesis strategy."
                f" Put a fixed value into arguments={{{name!r}: ...}}."
            )
        if name in schedule.arguments:
            raise DeclarationError(
                f"tg.Schedule has {name!r} both in vary and in arguments. Keep one of them."
            )
    feed, _ = schedule.feed
    for name in ("optimizer", "advance"):
        if feed == "step" and getattr(schedule, name) is not None:
            raise DeclarationError(
                f"tg.Schedule({name}=...) goes with a scheduler, and {schedule.name} is a function"
                " of the step. Leave it out."
            )
