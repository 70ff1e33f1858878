"""Probes: what one training step takes, and how much less of it than without what should save."""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from trainguard.core.errors import SubjectError
from trainguard.events.base import Plain
from trainguard.events.trace import Usage
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import Sizes, Stop, events
from trainguard.observe.memory.predict import FollowedStep, available_share, follow_step
from trainguard.observe.memory.run_steps import of_run
from trainguard.observe.memory.timeline import exact
from trainguard.subjects.budget import Budget
from trainguard.subjects.loop import Run
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model
from trainguard.subjects.units import format_bytes

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainguard.observe.memory.allocation_log import TEMPORARIES
from trainguard.observe.memory.events import moment
from trainguard.observe.memory.predict import measure_step, predict_step
from trainguard.observe.memory.timeline import ACTIVATIONS
from trainguard.subjects.subject import parameters

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

_LISTED = 3
_BEYOND = 4  # budgets: a real step is stopped there, its budget long broken
_ENOUGH = 1 << 30  # and not before that


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield what the step of a declared model or loss takes, at the sizes of its budget."""
    from trainguard.observe.memory import device  # which looks at steps itself

    if device.counts(observation.device):
        yield from device.step(observation)
        return
    seen, sizes = of_subject(observation)
    told = tuple(events(seen.timeline, seen.how, sizes, seen.detail, seen.stop))
    if seen.stop is not None and not says_enough(told, seen.stop, observation.budget):
        raise make_unfinished_error(seen, seen.stop)
    yield from told


def of_subject(observation: "MemoryObservation") -> tuple[FollowedStep, Sizes]:
    """Follow the step of whatever is declared; a run is made at the sizes that it has."""
    subject, budget = observation.subject, observation.budget
    if isinstance(subject, Run):
        sizes = tuple(sorted((name, _plain(value)) for name, value in budget.at.items()))
        return of_run(subject, budget.device, enough(budget), budget.at), sizes
    declared = declared_step(observation)
    return of(declared), declared.sizes


def enough(budget: Budget) -> float:
    """Return how far a real step need not go beyond: its budget is long broken by then."""
    if budget.peak is None:
        return available_share()
    return min(available_share(), max(_BEYOND * int(budget.peak), _ENOUGH))


def _plain(value: Any) -> Plain:
    """Return an argument as it is told."""
    return value if isinstance(value, int | float | str) else repr(value)


def declared_step(observation: "MemoryObservation") -> DeclaredStep:
    """Return the step that an observation is about."""
    subject, budget = observation.subject, observation.budget
    assert isinstance(subject, Model | Loss)
    return DeclaredStep(
        subject, budget, "cpu", observation.dtype, observation.settings, dict(budget.at)
    )


def of(declared: DeclaredStep) -> FollowedStep:
    """Follow the step of what is declared; a real one no further than to where its budget tells."""
    peak = declared.budget.peak
    most = min(available_share(), max(_BEYOND * int(peak), _ENOUGH)) if peak is not None else None
    return follow_step(declared.training, declared.budget.device, most)


def whole(declared: DeclaredStep) -> FollowedStep:
    """Follow the step of what is declared to its end; raises SubjectError where there is none."""
    seen = of(declared)
    if seen.stop is not None:
        raise make_unfinished_error(seen, seen.stop)
    return seen


def drop_rounding(seen: FollowedStep) -> FollowedStep:
    """
    Return what was followed with no block of an allocator rounded up.

    What is smaller than a block would seem to stay the same as sizes grow, and then to leap.
    """
    seen.timeline.rounding = exact
    return seen


def says_enough(told: tuple[Usage, ...], stop: Stop, budget: Budget) -> bool:
    """Say whether a step that was stopped had broken its budget by then, or ran out of memory."""
    limits = {("category", name): limit for name, limit in budget.categories.items()}
    if budget.peak is not None:
        limits["peak", ""] = int(budget.peak)
    broken = (seen.measured > limits.get((seen.quantity, seen.place), inf) for seen in told)
    return any(broken) or (stop.refused and budget.peak is not None)


def make_unfinished_error(seen: FollowedStep, stop: Stop) -> SubjectError:
    """Return the fault of a step that tells nothing because it was not made to its end."""
    held = seen.timeline.peak().categories.most_common(_LISTED)
    parts = ", ".join(f"{category} {format_bytes(size)}" for category, size in held)
    what = (
        f"its step ran out of memory, asked for {format_bytes(stop.asked)} more than"
        if stop.refused and stop.asked
        else "its step ran out of memory at"
        if stop.refused
        else "its step does not fit on this machine, where it was stopped at"
    )
    why = f", and could not be predicted: {seen.detail}" if seen.detail else ""
    return SubjectError(
        f"{what} {format_bytes(stop.held)}{why}",
        f"it held {parts}; let it run on fake tensors, or give smaller sizes in at={{...}}",
    )


def observe_saving(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield the peaks of both steps, and what each category has at either peak."""
    saved, full = _pair(declared_step(observation))
    small, large = _both(saved, full)
    less, more = small.timeline.peak(), large.timeline.peak()
    other = "its checkpoint" if saved.subject is full.subject else f"`{full.subject.name}`"
    passing = more.categories[ACTIVATIONS] + more.categories[TEMPORARIES]
    yield Usage(
        quantity="saving", place=other, at=moment(less.entry), measured=float(less.total),
        reference=float(more.total), count=passing, sizes=saved.sizes, how=small.how,
        detail=small.detail,
    )  # fmt: skip
    for category in sorted({*less.categories, *more.categories}):
        yield Usage(
            quantity="category", place=category, measured=float(less.categories[category]),
            reference=float(more.categories[category]),
        )  # fmt: skip


def _pair(declared: DeclaredStep) -> tuple[DeclaredStep, DeclaredStep]:
    """Return the step that is to take less, and the one that it is held against."""
    against = declared.budget.against
    if against is None:
        return replace(declared, checkpointed=True), declared
    return declared, _other(declared, against)


def _other(declared: DeclaredStep, against: Model | Loss) -> DeclaredStep:
    """Return the step of the subject that takes more, at the same sizes where it has them."""
    own: Mapping[str, Any] = against.memory_budget.at if against.memory_budget is not None else {}
    plain = replace(declared, subject=against, at={})
    common = {**declared.structure.sizes, **declared.at}
    has = {*plain.structure.sizes, *_arguments(against)}
    at = {name: size for name, size in common.items() if name in has}
    return replace(plain, budget=_trained_as(against, declared.budget), at={**at, **own})


def _trained_as(against: Model | Loss, budget: Budget) -> Budget:
    """Return the budget with the other's own optimizer and averaged copy, where it has some."""
    own = against.memory_budget or budget
    return replace(
        budget, using=own.using or budget.using, averaged=own.averaged or budget.averaged
    )


def _arguments(against: Model | Loss) -> set[str]:
    """Return the names of the arguments that the factory of a subject takes, as far as known."""
    if isinstance(against, Loss):
        return set(against.vary)
    accepted = set() if against.is_module else parameters(against.model) or set()
    return accepted | set(against.arguments)


def _both(saved: DeclaredStep, full: DeclaredStep) -> tuple[FollowedStep, FollowedStep]:
    """Follow both steps in the same way: predicted, or else both measured."""
    target = saved.budget.device
    try:
        return predict_step(saved.training, target), predict_step(full.training, target)
    except SubjectError as fault:
        why = fault.sentence
    small, large = (measure_step(step.training, target, why) for step in (saved, full))
    for seen in (small, large):
        if seen.stop is not None:
            raise make_unfinished_error(seen, seen.stop)
    return small, large
