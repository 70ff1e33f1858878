"""Probe: how much less memory the step takes with a switch than without, or than another's step."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Usage
from trainguard.observe.memory.allocation_log import TEMPORARIES
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import moment
from trainguard.observe.memory.predict import FollowedStep, measure_step, predict_step
from trainguard.observe.memory.step import declared_step, make_unfinished_error
from trainguard.observe.memory.timeline import ACTIVATIONS
from trainguard.subjects.budget import Budget
from trainguard.subjects.loss import Loss
from trainguard.subjects.model import Model
from trainguard.subjects.subject import parameters

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
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
