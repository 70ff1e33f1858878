"""The probes of how memory grows with the sizes of a step, and with the elements of a loss."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trainguard.core.errors import SubjectError
from trainguard.events.trace import Usage
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import moment
from trainguard.observe.memory.predict import FollowedStep, follow_step
from trainguard.observe.memory.step import declared_step, drop_rounding
from trainguard.observe.memory.timeline import Peak
from trainguard.observe.memory.training import Training
from trainguard.subjects.model import Model
from trainguard.subjects.units import SIZES, suspicious

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation
from math import prod
from typing import TYPE_CHECKING

from trainguard.observe.memory.events import largest_line
from trainguard.observe.memory.step import whole
from trainguard.observe.memory.training import INPUTS
from trainguard.subjects.domain import BATCH
from trainguard.subjects.loss import Loss

if TYPE_CHECKING:
    from trainguard.observe.memory.observer import MemoryObservation

_BELOW = 16  # so many times smaller than the real size begins what is doubled, where it is large
_LEAST = 64  # the largest size is this at the least
_MOST_SIZES = 8
_SECONDS = 6.0  # no further doubling after a step that took longer


def observe_scaling(observation: "MemoryObservation") -> Iterator[Usage]:
    """Yield the peaks at doubling sizes, one dimension after the other."""
    declared = declared_step(observation)
    for name, power in observation.budget.powers.items():
        ladder = _Ladder(declared, name)
        ladder.climb(float(power))
        yield from ladder.events()


@dataclass
class _Ladder:
    """
    The steps at doubling sizes of one dimension or argument.

    climbed: (size, step, its highest moment) of those that ran. why: what stopped the last one.
    """

    declared: DeclaredStep
    name: str
    climbed: list[tuple[int, FollowedStep, Peak]] = field(default_factory=list)
    why: str = ""

    @property
    def amounts(self) -> list[float]:
        """The bytes at each size."""
        return [float(peak.total) for _, _, peak in self.climbed]

    def climb(self, allowed: float) -> None:
        """
        Make the step at doubling sizes, on for as long as the last one grew too much.

        Raises SubjectError where too few sizes can be tried.
        """
        first, least = self._first()
        size = first
        while self._goes_on(size, first, least, allowed):
            started = perf_counter()
            if not self._try(size) and self.climbed:
                break
            if perf_counter() - started > _SECONDS and len(self.climbed) >= SIZES:
                break
            size *= 2
        while len(self.climbed) < SIZES and first % 2 == 0:
            first //= 2
            if not self._try(first):
                break
        if len(self.climbed) < SIZES:
            raise SubjectError(
                f"its memory could be followed at {len(self.climbed)} sizes of {self.name} only:"
                f" {self.why or 'the others take too long'}",
                f"give a size in at={{{self.name!r}: ...}} that can be halved and doubled",
            )

    def events(self) -> Iterator[Usage]:
        """Yield the bytes at each size, and the module that grew most with the last one."""
        for size, seen, peak in self.climbed:
            yield Usage(
                quantity="size", place=self.name, at=moment(peak.entry), measured=float(size),
                reference=float(peak.total), sizes=self._others(), how=seen.how,
                detail=seen.detail,
            )  # fmt: skip
        (_, _, before), (_, _, last) = self.climbed[-2:]
        grown = {key: held - before.modules[key] for key, held in last.modules.items()}
        lines = {key: held - before.lines[key] for key, held in last.lines.items() if key}
        for module, category in sorted(grown, key=lambda key: -grown[key])[:1]:
            yield Usage(
                quantity="grown", place=self.name, measured=float(grown[module, category]),
                detail=f"{category} of `{module}`" if module else f"{category} outside of modules",
                source=max(lines, key=lambda line: lines[line], default=""),
            )  # fmt: skip

    def _goes_on(self, size: int, first: int, least: int, allowed: float) -> bool:
        """Say whether a size is to be tried: some at least, then while the last looked steep."""
        if not self.climbed:
            return size <= first * _BELOW  # smaller ones may be too small for it
        if size <= least or len(self.climbed) < SIZES:
            return True
        return len(self.climbed) < _MOST_SIZES and suspicious(self.amounts, allowed)

    def _try(self, size: int) -> bool:
        """Make the step at one size; what it raises there is kept in words."""
        declared = self.declared.with_sizes(**{self.name: size})
        try:
            seen = drop_rounding(follow_step(lambda: _passes(declared), declared.budget.device))
        except SubjectError as fault:
            self.why = f"at {self.name}={size}, {fault.sentence}"
            return False
        if seen.stop is not None:
            self.why = f"at {self.name}={size}, it does not fit on this machine"
            return False
        self.climbed.append((size, seen, seen.timeline.peak()))
        self.climbed.sort(key=lambda climbed: climbed[0])
        return True

    def _first(self) -> tuple[int, int]:
        """Return the smallest size, and the one that is to be reached."""
        structure = self.declared.structure
        value: Any = structure.sizes.get(self.name, structure.hyperparameters.get(self.name))
        if value is None:
            value = _default(self.declared, self.name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SubjectError(
                f"its argument {self.name!r} is {value!r}, which is no size that could be doubled",
                f"give one in at={{{self.name!r}: ...}}",
            )
        if value >= _LEAST and value % _BELOW == 0:
            return value // _BELOW, value
        return value, value

    def _others(self) -> tuple[tuple[str, Any], ...]:
        """Return the sizes that stayed as they are."""
        return tuple(pair for pair in self.declared.sizes if pair[0] != self.name)


def _passes(declared: DeclaredStep) -> Training:
    """Return the forward and backward pass alone: what the optimizer holds hides their growth."""
    return replace(declared.training(), optimizer=None, average=None, steps=1)


def _default(declared: DeclaredStep, name: str) -> Any:
    """Return what a factory is called with where nothing is said: as declared, or its default."""
    subject = declared.subject
    if not isinstance(subject, Model):
        return None
    if name in subject.arguments:
        return subject.arguments[name]
    found = inspect.signature(subject.model).parameters.get(name)
    return None if found is None else found.default


def observe_element(observation: "MemoryObservation") -> Iterator[Usage]:
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
