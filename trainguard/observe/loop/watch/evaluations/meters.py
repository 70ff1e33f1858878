"""Watches what adds up over an evaluation: whether it begins anew with each one."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.meter_values import MOST, Numbers, numbers_of, readings
from trainguard.observe.loop.watch.said.logged import LoggedValues, Said
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.owners import find_owners

_WIDE = 64  # numbers of a function that are read
_KEPT = 256  # meters
_EVALUATIONS = 64  # that are looked at: a meter that is reset at times is not what is looked for
_COARSE = 0.02  # of a number that is said: what is rounded more than that says nothing
_RIGHT = 1e-6  # of it: what other orders of adding up make
# Names of what takes time, whose mean may well be over all evaluations.
_TIMES = {"fps", "ms", "sec", "second", "seconds", "speed", "throughput", "time"}


@dataclass(slots=True)
class _Meter:
    """
    Something with numbers of its own, as they were when the last evaluation was over.

    samples: of all evaluations that it has gone through. told: how often what was said is what it
    comes to over several of them, by form and by the name that it was said under; of: the samples
    of the latest of these.
    """

    name: str
    numbers: Numbers
    samples: int = 0
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    count: int = 0
    of: int = 0
    source: str = ""


class Meters(Watcher):
    """
    The Probe event "meter": what adds up over several evaluations, and was said of one.

    measured: over how many samples it is; reference: how many the evaluation had; step: the number
    of evaluations after which it was said.
    """

    makes = ("Probe:meter",)
    relies_on = ("LoggedValues",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._samples = self._passes = self._clock = 0  # of the evaluation that goes on
        self._evaluations = 0
        self._step = -2  # of the latest evaluation
        self._is_routine = False  # whether it came right after the step before, as a teacher's do
        self._begun: dict[Hashable, Numbers] = {}
        self._between: dict[Hashable, Numbers] = {}  # after the first pass of several
        self._meters: dict[Hashable, _Meter] = {}

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at meters before the first pass of an evaluation, and once it is learned again."""
        if self._evaluations >= _EVALUATIONS:
            return
        if not forward.gradients:
            if not self._passes:
                step, self._step = self._step, self.recorder.steps
                self._is_routine = self._step - step < 2
            if self._passes < 2 and not self._is_routine:
                now = {key: numbers for _, numbers, key in _find_meters()}
                self._begun, self._between = (self._begun, now) if self._passes else (now, {})
            self._passes += 1
            self._samples, self._clock = self._samples + forward.samples, forward.clock
        elif self._passes:
            if not self._is_routine:
                self._evaluations += 1
                self._compare_all()
            self._samples = self._passes = 0

    def finish(self) -> Iterable[Event]:
        """Return the meters that were said to be what they are not."""
        told = sorted(self._meters.values(), key=lambda meter: max(meter.told.values(), default=0))
        # A list is in its owner too.
        by_line = {meter.source: meter for meter in told if meter.told}
        for meter in by_line.values():
            yield Probe(
                probe="meter",
                measured=float(meter.count),
                reference=float(meter.of),
                step=max(meter.told.values()),
                label=meter.name or meter.told.most_common(1)[0][0][0],
                source=meter.source,
            )

    def _compare_all(self) -> None:
        """Look at all meters after an evaluation."""
        every = self.recorder.watcher(LoggedValues).said_after(self._clock)
        said = [each for each in every if _TIMES.isdisjoint(words_of(each[3]))]
        for name, numbers, key in _find_meters():
            if key in self._meters or len(self._meters) < _KEPT:
                meter = self._meters.setdefault(key, _Meter(name, {}))
                self._compare(meter, key, numbers, said)

    def _compare(self, meter: _Meter, key: Hashable, now: Numbers, said: list[Said]) -> None:
        """Find what was said in what a meter has counted in this evaluation and in those before."""
        before, meter.numbers = meter.numbers, now
        begun, between = self._begun.get(key, {}), self._between.get(key, {})
        grown = {k: now[k] - begun[k] for k in now if k in begun and now[k].shape == begun[k].shape}
        of = self._samples, self._passes
        counts = {name for name, more in grown.items() if _counts(more, *of)}
        self.looked |= {"meter"} if counts else set()
        added = {k: more for k, more in grown.items() if more.any() and (more >= 0).all()}
        carried = {
            k: now[k]
            for k in added
            if k in before and begun[k].any() and np.array_equal(before[k], begun[k])
        }
        meter.samples = self._samples + (meter.samples if carried else 0)
        if not carried:
            return
        # What is set once, at the end, may be larger than the last time by itself.
        steady = {
            k for k in carried if _rises(begun[k], between.get(k)) and _rises(between[k], now[k])
        }
        whole = readings(carried, counts & set(carried), steady, of)
        own = readings({k: added[k] for k in carried}, counts & set(carried), steady, of)
        told = [each for each in said if not any(_is(each[0], v, each[1]) for v in own.values())]
        for form, value in whole.items():
            source, name = next((e[2:] for e in told if _is(e[0], value, e[1])), ("", ""))
            if source and form in own:
                meter.told[form, name] += 1
                meter.count, meter.of, meter.source = meter.samples, self._samples, source


def _rises(before: Any, after: Any) -> bool:
    """Say whether numbers have grown, at least one of them."""
    alike = after is not None and before.shape == after.shape
    return alike and bool((after >= before).all() and (after > before).any())


def _counts(more: Any, samples: int, passes: int) -> bool:
    """Say whether a number has grown by samples of an evaluation, or their parts, or batches."""
    if more.ndim:
        return False
    whole = float(more).is_integer()  # which what is not finite is not
    return bool(whole and (more >= max(2, samples) or more == passes > 1))


def _is(value: float, mean: float, rounding: float) -> bool:
    """Say whether a number that was said is a mean, or a hundred times that."""
    slack = rounding + _RIGHT * abs(value)
    near = any(abs(value - factor * mean) <= slack for factor in (1, 100))
    return near and rounding <= _COARSE * abs(value)


def _find_meters() -> Iterator[tuple[str, Numbers, Hashable]]:
    """Yield what has numbers among the variables of the user's code: name, numbers, what it is."""
    for name, key, values in find_owners():
        if not name:
            kinds = (int, float, list, torch.Tensor)
            values = {k: each for k, each in values.items() if type(each) in kinds}
        numbers = numbers_of(values) if len(values) <= _WIDE else {}
        if numbers and (not name or len(numbers) <= MOST):
            yield name, numbers, key
