"""What judgements of a training run share: the steps of one optimizer, medians, shares of steps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from trainguard.core.measure import Measure, Place, at_step, number, portion
from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.events.origin import Origin
from trainguard.events.trace import Trace

E = TypeVar("E", bound=Event)
MAJORITY = 0.5
LEFT_OVER = 1e-3  # of the norm of a step: what rounding leaves of gradients that were cleared


@dataclass(frozen=True, slots=True)
class Course:
    """
    The steps of one optimizer in order, those that a scaler skipped left out.

    every: the steps with the skipped ones. alone: whether no other optimizer stepped in the run.
    """

    optimizer: str
    every: tuple[Step, ...]
    alone: bool = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that were made."""
        return tuple(step for step in self.every if not step.skipped)

    @property
    def by_hand(self) -> bool:
        """Whether parameters moved without an optimizer, so that no rate is known."""
        return self.optimizer.startswith("by hand")

    def at(self, step: Step) -> Place:
        """Return where in the run a step is: "step 512", "step 512 of AdamW#2"."""
        return at_step(step.step) + ("" if self.alone else f" of {self.optimizer}")


def events(trace: Trace[Any], kind: type[E]) -> tuple[E, ...]:
    """Return the events of one kind, in order."""
    return tuple(event for event in trace if isinstance(event, kind))


def courses(trace: Trace[Any]) -> list[Course]:
    """Return the steps of each optimizer; the one that stepped first comes first."""
    steps: dict[str, list[Step]] = {}
    for step in events(trace, Step):
        steps.setdefault(step.optimizer, []).append(step)
    return [Course(name, tuple(own), len(steps) == 1) for name, own in steps.items()]


def gradient_sizes(step: Step) -> dict[str, float]:
    """Return the root mean square of each weight's gradient, for those that have one."""
    layers = [(name, norm, size) for name, norm, size in step.layers if size > 0]
    return {name: norm / sqrt(size) for name, norm, size in layers if isfinite(norm) and norm > 0}


def line_of_steps(trace: Trace[Any]) -> str:
    """Return the line that makes the steps, or nothing where it is not known."""
    return next((step.source for step in events(trace, Step) if step.source), "")


def line_of_origin(trace: Trace[Any], name: str) -> str:
    """Return the line that made what has a name, or the module of a parameter; or nothing."""
    lines = {origin.name: origin.source for origin in events(trace, Origin)}
    return lines.get(name) or lines.get(name.rpartition(".")[0], "")


def line_of_optimizer(trace: Trace[Any]) -> str:
    """Return the line that made the optimizer that steps most, or else that of its steps."""
    course = main_course(trace)
    return (line_of_origin(trace, course.optimizer) if course else "") or line_of_steps(trace)


def lines_of_origin(trace: Trace[Any], name: str) -> list[str]:
    """Return all lines that stand behind a name, in their order."""
    return [origin.source for origin in events(trace, Origin) if origin.name == name]


def in_line(*sources: str) -> str:
    """Return where something is as an addition in brackets, " (train.py:21)", or nothing."""
    places = [Path(source).name for source in sources if source]
    return f" ({', '.join(places)})" if places else ""


def main_course(trace: Trace[Any]) -> Course | None:
    """Return the steps of the optimizer that made the most; None in a run without a step."""
    return max(courses(trace), key=lambda course: count(course.every), default=None)


def count(steps: Iterable[Step]) -> int:
    """Return how many steps of the run these stand for: a thinned run keeps some of them."""
    return sum(step.span for step in steps)


def share(steps: Iterable[Step], test: Callable[[Step], bool]) -> float:
    """Return the share of the steps that pass a test, 0 to 1; nan of no steps."""
    kept = list(steps)
    total = count(kept)
    return count(step for step in kept if test(step)) / total if total else nan


def most_of(part: Iterable[Step], whole: Iterable[Step], least: float = MAJORITY) -> bool:
    """Say whether some steps are more than a share of others that they are part of."""
    return count(part) > least * count(whole)


def mostly(steps: Iterable[Step], test: Callable[[Step], bool], least: float = MAJORITY) -> bool:
    """Say whether more than a share of the steps passes a test; False of no steps."""
    return share(steps, test) > least


def first(steps: Iterable[Step], test: Callable[[Step], bool]) -> Step | None:
    """Return the first step that passes a test, or None."""
    return next((step for step in steps if test(step)), None)


def longest(steps: Sequence[Step], test: Callable[[Step], bool]) -> tuple[Step, ...]:
    """Return the longest stretch of steps in a row that pass a test; the first of equal ones."""
    stretches = [tuple(own) for passes, own in groupby(steps, test) if passes]
    return max(stretches, key=count, default=())


def stretch(steps: Sequence[Step], low: float, high: float) -> tuple[Step, ...]:
    """Return the steps of one part of the run (0 to 0.25: its first quarter); at least one."""
    total, done, kept = count(steps), 0, []
    for step in steps:
        if low * total <= done + step.span / 2 < high * total:
            kept.append(step)
        done += step.span
    return tuple(kept) or tuple(steps[:1] if low == 0 else steps[-1:])


def finite(values: Iterable[float]) -> list[float]:
    """Return the values that are numbers: neither nan, where nothing is known, nor infinite."""
    return [value for value in values if isfinite(value)]


def middle(values: Iterable[float]) -> float:
    """Return the median of the finite values; nan where there is none."""
    kept = finite(values)
    return median(kept) if kept else nan


def stale_steps(course: Course, least: float) -> list[Step]:
    """
    Return the steps that begin with gradients which were used before, where most steps do.

    least: share of the norm of a step below which nothing was left over.
    """
    later = [step for step in course.every[1:] if not step.skipped]
    stale = [s for s in later if s.leftover > 0 and not s.leftover < least * s.norm]
    return stale if most_of(stale, later) else []


def tally(steps: Iterable[Step], among: Iterable[Step], noun: str = "steps") -> Measure:
    """
    Write how many of the steps: "212 of 240 steps".

    Where some stand for others that nobody looked at, "about 212 of 240 steps", unless it is all.
    """
    every = [*among]
    told = portion(count(steps), count(every), noun)
    kept = told.value or 0
    guessed = any(step.span > 1 for step in every) and 0 < kept < count(every)
    return Measure(f"about {told}", told.value, told.unit) if guessed else told


def percent(part: float) -> Measure:
    """Write a share as a percentage with three significant digits: "97.5 %"."""
    return number(100 * part, "%", ".3g")


def and_more(names: Iterable[str]) -> str:
    """Write the first of some names, and how many more there are: "Net.fc1.weight and 3 more"."""
    first, *others = names
    return first + (f" and {len(others)} more" if others else "")


def root_of(name: str) -> str:
    """Return the outermost module of a name."""
    return name.partition(".")[0]


def last_word(step: Step, word: str) -> int:
    """Return where a word stands last in the order of a step's window; -1 where it does not."""
    return max((index for index, done in enumerate(step.order) if done == word), default=-1)


def place_of_log(name: str, channel: str, steps: int) -> str:
    """Write where a value was said: "loss (stdout), after 3 steps"."""
    return f"{name} ({channel}), after {steps} step{'' if steps == 1 else 's'}"


def rates_rise(trace: Trace[Any]) -> bool:
    """Say whether the rates are still on their way up at the end of the run."""
    course = main_course(trace)
    rates = [max(s.rates) for s in stretch(course.every, 0.5, 1) if s.rates] if course else []
    return bool(rates) and rates[-1] >= max(rates) > 1.2 * min(rates)
