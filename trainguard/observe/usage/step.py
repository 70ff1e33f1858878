"""Probe: what one training step takes, by category, module and line."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainguard.loss import Loss
from trainguard.model import Model
from trainguard.observe.usage.account import events
from trainguard.observe.usage.declared import Declared
from trainguard.observe.usage.predict import Followed, followed
from trainguard.trace import Usage

if TYPE_CHECKING:
    from trainguard.observe.memory import MemoryObservation


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield what the step of a declared model or loss takes, at the sizes of its budget."""
    declared = declared_step(observation)
    seen = of(declared)
    yield from events(seen.timeline, seen.how, declared.sizes, seen.detail)


def declared_step(observation: "MemoryObservation") -> Declared:
    """Return the step that an observation is about."""
    subject, budget = observation.subject, observation.budget
    assert isinstance(subject, Model | Loss)
    return Declared(
        subject, budget, "cpu", observation.dtype, observation.settings, dict(budget.at)
    )


def of(declared: Declared) -> Followed:
    """Follow the step of what is declared."""
    return followed(declared.training, declared.budget.device)
