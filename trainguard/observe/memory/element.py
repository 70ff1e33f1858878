"""Probe: what one call of a loss holds for each element of its largest input."""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from trainguard.events.trace import Usage
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import largest_line, moment
from trainguard.observe.memory.predict import FollowedStep
from trainguard.observe.memory.step import declared_step, drop_rounding, whole
from trainguard.observe.memory.timeline import Peak
from trainguard.observe.memory.training import INPUTS
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation


def observe(observation: "MemoryObservation") -> Iterator[Usage]:
    """
    Yield the bytes held for each element: on average, and for those of a batch twice as large.

    Nothing is rounded: blocks of an allocator would count for much where sizes are small.
    """
    declared = declared_step(observation)
    seen = _follow(declared)
    peak = seen.timeline.peak()
    name, elements = _largest_input(declared)
    average = _above_inputs(peak) / elements
    yield Usage(
        quantity="element", place=name, at=moment(peak.entry), measured=average,
        reference=_further(declared, peak, elements, average), count=_above_inputs(peak),
        of=elements, sizes=declared.sizes, how=seen.how, detail=seen.detail,
        source=largest_line(peak),
    )  # fmt: skip


def _follow(declared: DeclaredStep) -> FollowedStep:
    """Follow one call to its end."""
    return drop_rounding(whole(declared))


def _further(declared: DeclaredStep, peak: Peak, elements: int, average: float) -> float:
    """Return what each further element costs, where the batch has twice as many samples."""
    size = dict(declared.structure.sizes).get(BATCH)
    if size is None:
        return average
    twice = declared.with_sizes(**{BATCH: 2 * size})
    more = _largest_input(twice)[1] - elements
    if more <= 0:
        return average
    return (_above_inputs(_follow(twice).timeline.peak()) - _above_inputs(peak)) / more


def _largest_input(declared: DeclaredStep) -> tuple[str, int]:
    """Return the name and the number of elements of the largest input."""
    assert isinstance(declared.subject, Loss)
    sizes = declared.structure.sizes
    counts = {n: prod(domain.dims(sizes)) for n, domain in declared.subject.tensors.items()}
    return max(counts.items(), key=lambda item: item[1])


def _above_inputs(peak: Peak) -> int:
    """Return the bytes held at the peak, inputs apart."""
    return peak.total - peak.categories[INPUTS]
