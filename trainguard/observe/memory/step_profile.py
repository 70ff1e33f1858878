"""Look at one training step as a whole: its breakdown, its course, and what fits in a budget."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.events.memory import Breakdown, MemoryCourse, PeakPart, alike
from trainguard.observe.memory import step, timeline
from trainguard.observe.memory.allocation_log import BACKWARD, BUILD, RECOMPUTE
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.events import Sizes, moment
from trainguard.observe.memory.predict import FollowedStep, available_share, predict_step
from trainguard.observe.memory.run_steps import of_run
from trainguard.observe.memory.timeline import Peak, Timeline
from trainguard.observe.tools.isolation import deadline, isolate
from trainguard.subjects.budget import Budget
from trainguard.subjects.loop import Run

_HELD = ("parameters", "buffers", "averages", "optimizer")  # until the training is over
_MOMENTS = 1200  # kept of a course at most: more than a page has pixels


@dataclass
class StepProfile:
    """
    The step of a declared model or loss, at the sizes that are asked about.

    at: sizes and arguments on top of those of the declaration. checkpointed: whether the model's
    `checkpoint` is applied.
    """

    subject: Any
    budget: Budget
    dtype: str
    at: Mapping[str, Any]
    checkpointed: bool = False
    seen: FollowedStep | None = field(default=None, init=False)

    def breakdown(self) -> Breakdown:
        """Follow the step and return what it took; raises SubjectError where it cannot be."""
        with isolate(0), deadline(self.subject.timeout):
            self.seen = step.of(self._declare())
        return broken_down(self.subject.name, self.seen, self._declare().sizes)

    def peak(self, name: str, size: int) -> int:
        """Predict the peak at another size; raises SubjectError where the step does not run."""
        declared = self._declare().with_sizes(**{name: size})
        with isolate(0), deadline(self.subject.timeout):
            seen = predict_step(declared.training, self.budget.device)
        return seen.timeline.peak().total

    def snapshot(self) -> bytes:
        """Return the step that was followed as a file for PyTorch's memory viewer."""
        assert self.seen is not None, "there is nothing to write before it is followed"
        return timeline.pickle_snapshot(self.seen.timeline)

    def _declare(self) -> DeclaredStep:
        """Return the step at the sizes that are asked about."""
        return DeclaredStep(
            self.subject, self.budget, "cpu", self.dtype, Settings(), self.at, self.checkpointed
        )


@dataclass
class RunStepProfile:
    """
    The steps of a function or a script that trains, run as it is in a process of its own.

    at: arguments of the function on top of those of the declaration.
    """

    subject: Run
    budget: Budget
    at: Mapping[str, Any]
    seen: FollowedStep | None = field(default=None, init=False)

    def breakdown(self) -> Breakdown:
        """Follow the first steps and return what they took; raises SubjectError without any."""
        self.seen = self._follow(self.at)
        given = {**getattr(self.subject, "arguments", {}), **self.at}
        sizes = {k: v if isinstance(v, int | float | str) else repr(v) for k, v in given.items()}
        return broken_down(self.subject.name, self.seen, tuple(sorted(sizes.items())))

    def peak(self, name: str, size: int) -> int:
        """Predict the peak with another argument; raises SubjectError where that cannot be."""
        seen = self._follow({**self.at, name: size})
        if not seen.predicted_for:
            raise SubjectError(seen.detail)
        return seen.timeline.peak().total

    def snapshot(self) -> bytes:
        """Return the steps that were followed as a file for PyTorch's memory viewer."""
        assert self.seen is not None, "there is nothing to write before it is followed"
        return timeline.pickle_snapshot(self.seen.timeline)

    def _follow(self, at: Mapping[str, Any]) -> FollowedStep:
        """Follow the first steps."""
        with isolate(0), deadline(self.subject.timeout):
            return of_run(self.subject, self.budget.device, available_share(), at)


def broken_down(name: str, seen: FollowedStep, sizes: Sizes) -> Breakdown:
    """Return what a step that was followed took."""
    timeline = seen.timeline
    peak, highest = timeline.peak(), timeline.highest()
    lines = [(line, held) for line, held in peak.lines.most_common() if line]
    return Breakdown(
        subject=name,
        how=seen.how,
        predicted_for=seen.predicted_for,
        detail=seen.detail,
        exhausted=seen.is_exhausted,
        sizes=sizes,
        peak=peak.total,
        moment=moment(peak.entry),
        source=lines[0][0] if lines else "",
        categories=tuple(_categories(peak, highest)),
        modules=alike((module, kind, held) for (module, kind), held in peak.modules.items()),
        lines=tuple(PeakPart(name=line, held=held) for line, held in lines),
        course=course(timeline, sorted(highest, key=lambda kind: _ORDER.get(kind, len(_ORDER)))),
    )


def _categories(peak: Peak, highest: Mapping[str, int]) -> Iterator[PeakPart]:
    """Yield the categories, what is largest at the peak first."""
    for kind in sorted(highest, key=lambda kind: (-peak.categories[kind], kind)):
        if highest[kind]:
            yield PeakPart(name=kind, held=peak.categories[kind], highest=highest[kind])


# From the bottom of the picture up: what stays is below what comes and goes.
_ORDER = {
    kind: place
    for place, kind in enumerate(
        ("parameters", "buffers", "averages", "optimizer", "inputs", "gradients", "activations",
         "temporaries")
    )
}  # fmt: skip


def course(timeline: Timeline, categories: list[str], most: int = _MOMENTS) -> MemoryCourse:
    """Return what was held over the steps, of so many moments the highest of each few changes."""
    places = _lasting(timeline)
    width = max(1, -(-len(places) // most))
    held: list[tuple[int, ...]] = []
    phases: list[tuple[int, str, int]] = []
    highest, first = -1, places.start
    for place, now in enumerate(timeline.by_category()):
        if place not in places:
            continue
        change = timeline.changes[place]
        slot, total = (place - first) // width, sum(now.values())
        phase = BACKWARD if change.phase == RECOMPUTE else change.phase
        if not phases or phases[-1][1:] != (phase, change.step):
            phases.append((slot, phase, change.step))
        if slot == len(held):
            held.append(_row(now, categories))
            highest = total
        elif total > highest:
            held[slot], highest = _row(now, categories), total
    totals = [sum(row) for row in held]
    peak = totals.index(max(totals)) if totals else 0
    return MemoryCourse(
        categories=tuple(categories), held=tuple(held), peak=peak, phases=tuple(phases),
        operations=len(places),
    )  # fmt: skip


def _lasting(timeline: Timeline) -> range:
    """Return the changes from the first step on until all is let go at the end."""
    changes, entries = timeline.changes, timeline.entries
    first = next((place for place, change in enumerate(changes) if change.step > 0), 0)
    end = len(changes)
    for place in range(len(changes) - 1, first - 1, -1):
        change = changes[place]
        if change.phase != BUILD or change.size > 0:
            break
        if entries[change.entry].category in _HELD:
            end = place
    return range(first, end)


def _row(held: Mapping[str, int] | Counter[str], categories: list[str]) -> tuple[int, ...]:
    """Return the bytes of each category, in order."""
    return tuple(held.get(kind, 0) for kind in categories)
