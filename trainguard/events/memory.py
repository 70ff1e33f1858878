"""What one training step took, as plain values: by category, module and line, and over time."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from re import sub

from trainguard.events.base import Plain

OUTSIDE = "outside of modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCourse:
    """
    How much was held over a step, by category.

    categories: their names. held: for each moment the bytes of each category. peak: which of the
    moments is the highest. phases: (first moment, phase, step), in order; a phase lasts until the
    next one. operations: how many changes the moments stand for; of several the highest is kept.
    """

    categories: tuple[str, ...]
    held: tuple[tuple[int, ...], ...]
    peak: int
    phases: tuple[tuple[int, str, int], ...]
    operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPart:
    """
    A part of the peak: what it is called, and the bytes held then.

    highest: the most that was held of it at any moment. count: how many modules share the name.
    categories: (category, bytes), largest first.
    """

    name: str
    held: int
    highest: int = 0
    count: int = 1
    categories: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """
    The peak of one training step, and what made it up.

    how: "predicted for cuda on fake tensors", or "measured on cpu". detail: what was made up, or
    why it was not predicted. moment, source: when the peak was, and the line that made most of it.
    exhausted: whether the step was stopped for want of memory, so that the peak is a lower bound.
    predicted_for: the device it was predicted for; nothing where it was measured.
    """

    subject: str
    how: str
    sizes: tuple[tuple[str, Plain], ...]
    peak: int
    moment: str
    source: str
    categories: tuple[PeakPart, ...]
    modules: tuple[PeakPart, ...]
    lines: tuple[PeakPart, ...]
    course: MemoryCourse
    detail: str = ""
    exhausted: bool = False
    predicted_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """
    The largest value of a dimension at which the step stays within a budget.

    most: that value; 0 where not even one fits. peak: the bytes it takes there. next: the smallest
    value that was found not to fit. above: the bytes that it takes, or nothing where it does not
    run. why: what stops it, where that is not memory. grain: the step between the values that run.
    tried: how many were predicted.
    """

    name: str
    most: int
    peak: int = 0
    next: int = 0
    above: int = 0
    why: str = ""
    grain: int = 1
    tried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """All that is reported of one step: its breakdown, the budget asked about, and what fits."""

    target: str
    breakdown: Breakdown
    budget: int | None = None
    fits: tuple[Fit, ...] = field(default=())

    @property
    def spare(self) -> int | None:
        """The bytes that are left of the budget, or missing where below zero."""
        return None if self.budget is None else self.budget - self.breakdown.peak


def alike(modules: Iterable[tuple[str, str, int]]) -> tuple[PeakPart, ...]:
    """
    Add up modules that differ by a number only, largest first.

    Takes (module, category, bytes). `blocks.0.mlp` to `blocks.31.mlp` become `blocks.*.mlp`.
    """
    held: dict[str, Counter[str]] = {}
    names: dict[str, set[str]] = {}
    for module, category, size in modules:
        pattern = sub(r"(?<=\.)\d+(?=\.|$)", "*", module)
        held.setdefault(pattern, Counter())[category] += size
        names.setdefault(pattern, set()).add(module)
    parts = [
        PeakPart(
            name=(min(names[key]) if len(names[key]) == 1 else key) or OUTSIDE,
            held=categories.total(),
            categories=tuple(categories.most_common()),
            count=len(names[key]),
        )
        for key, categories in held.items()
    ]
    return tuple(sorted(parts, key=lambda part: (-part.held, part.name)))
