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
from trainguard.observe.loop.meter_values import (
    MOST,
    Numbers,
    added_to,
    metrics_of,
    numbers_of,
    readings,
)
from trainguard.observe.loop.watch.said.logged import LoggedValues, Said
from trainguard.observe.loop.watch.watcher import Watcher, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.owners import find_owners
from trainguard.observe.tools.patches import Patches

_WIDE = 64  # numbers of a function that are read
_KEPT = 256  # meters
_EVALUATIONS = 64  # that are looked at: a meter that is reset at times is not what is looked for
_READ = 4  # times that something is said after a pass of an evaluation, and meters are read again
_COARSE = 0.02  # of a number that is said: what is rounded more than that says nothing
_RIGHT = 1e-6  # of it: what other orders of adding up make
# Names of what takes time, whose mean may well be over all evaluations.
_TIMES = {"fps", "ms", "sec", "second", "seconds", "speed", "throughput", "time"}


_Found = dict[Hashable, tuple[str, Numbers]]  # meters: their names and numbers


@dataclass(slots=True)
class _Meter:
    """
    Something with numbers of its own, as they were when the last evaluation was over.

    samples: of all evaluations that it has gone through. told: how often what was said is what it
    comes to over several of them, by form and by the name that it was said under; of: the samples
    of the latest of these. taught: whether it is over batches of training, and no others.
    """

    name: str
    numbers: Numbers
    samples: int = 0
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    count: int = 0
    of: int = 0
    source: str = ""
    taught: bool = False


class Meters(Watcher):
    """
    The Probe event "meter": what adds up over several evaluations, and was said of one.

    measured: over how many samples it is; reference: how many the evaluation had; step: the number
    of evaluations after which it was said.

    The Probe event "taught meter": what adds up in training and goes on in an evaluation, and was
    said of that; measured and reference: what it has counted by its end, and in it, 0 for nothing.
    """

    makes = ("Probe:meter", "Probe:taught meter")
    relies_on = ("LoggedValues",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._samples = self._passes = self._clock = 0  # of the evaluation that goes on
        self._evaluations = 0
        self._step = -2  # of the latest evaluation
        self._is_routine = False  # whether it came right after the step before, as a teacher's do
        self._begun: dict[Hashable, Numbers] = {}
        self._between: dict[Hashable, Numbers] = {}  # after the first pass of several
        self._ended: _Found = {}  # when something was said of the evaluation
        self._left = 0
        self._meters: dict[Hashable, _Meter] = {}

    def install(self, patches: Patches) -> None:
        """Listen to what is said, at which a meter still has what it is said to have."""
        self.recorder.watcher(LoggedValues).at_said.append(self._read)

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
                self._ended = {}
            self._left = _READ
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
                probe="taught meter" if meter.taught else "meter",
                measured=float(meter.count),
                reference=float(meter.of),
                step=max(meter.told.values()),
                label=meter.name or meter.told.most_common(1)[0][0][0],
                source=meter.source,
            )

    @shielded
    def _read(self) -> None:
        """Read all meters when something is said between an evaluation and the next learning."""
        patches = self.recorder.patches
        if self._passes > 1 and self._left and not self._is_routine and patches.active:
            self._left -= 1
            self._ended = {key: (name, numbers) for name, numbers, key in _find_meters()}

    def _compare_all(self) -> None:
        """Look at all meters after an evaluation."""
        every = self.recorder.watcher(LoggedValues).said_after(self._clock)
        said = [each for each in every if _TIMES.isdisjoint(words_of(each[3]))]
        now: _Found = {key: (name, numbers) for name, numbers, key in _find_meters()}
        for key, (name, numbers) in (self._ended | now).items():
            # A meter of training may be made anew in each epoch: it is known by its name.
            known = key, ("taught", name or key)
            if known[0] in self._meters or len(self._meters) < _KEPT:
                meter, taught = (self._meters.setdefault(k, _Meter(name, {})) for k in known)
                self._compare(meter, taught, key, numbers, said)

    def _compare(
        self, meter: _Meter, taught: _Meter, key: Hashable, now: Numbers, said: list[Said]
    ) -> None:
        """Find what was said in what a meter has counted in this evaluation and before it."""
        before, meter.numbers = meter.numbers, now
        now = self._ended.get(key, ("", now))[1]
        begun = self._begun.get(key, {})
        grown = {k: now[k] - begun[k] for k in now if k in begun and now[k].shape == begun[k].shape}
        counts = {name for name, more in grown.items() if _counts(more, *self._of)}
        self.looked |= {"meter"} if counts else set()
        held = {k for k, more in grown.items() if more.any() and (more >= 0).all()}
        held = {k for k in held if begun[k].any()}
        same = {k for k in held if k in before and np.array_equal(before[k], begun[k])}
        meter.samples = self._samples + (meter.samples if same else 0)
        lists = added_to(begun, now)
        kept = {k for k in lists if k in before and np.array_equal(before[k], begun[k])}
        for each, carried in (
            (meter, same | kept),
            (taught, (held - same) | (lists.keys() - kept)),
        ):
            each.taught = each is taught
            numbers = {k: (begun[k], now[k]) for k in carried & held}
            paired = {k: lists[k] for k in carried & lists.keys()}
            source = self._tell(each, key, numbers, paired, counts & carried, said)
            if source:
                own = [(int(now[k]), int(grown[k])) for k in counts & carried]
                each.count, each.of = meter.samples, self._samples
                if each.taught:
                    near = min(own, key=lambda count: abs(count[1] - self._samples), default=(0, 0))
                    each.count, each.of = near
                each.source = source

    @property
    def _of(self) -> tuple[int, int]:
        """How many samples and batches the evaluation has."""
        return self._samples, self._passes

    def _tell(
        self,
        meter: _Meter,
        key: Hashable,
        numbers: dict[str, tuple[Any, Any]],
        paired: dict[str, tuple[Any, Any]],
        counts: set[str],
        said: list[Said],
    ) -> str:
        """Count what was said that numbers come to, and not what they have grown by; the line."""
        between, line = self._between.get(key, {}), ""
        # What is set once, at the end, may be larger than the last time by itself.
        steady = {
            k
            for k, (begun, now) in numbers.items()
            if _rises(begun, between.get(k)) and _rises(between[k], now)
        }
        whole = readings({k: now for k, (_, now) in numbers.items()}, counts, steady, self._of)
        added = {k: now - begun for k, (begun, now) in numbers.items()}
        own = readings(added, counts, steady, self._of)
        if said and paired:
            whole |= metrics_of({k: every for k, (every, _) in paired.items()})
            own |= metrics_of({k: latest for k, (_, latest) in paired.items()})
        told = [each for each in said if not any(_is(each[0], v, each[1]) for v in own.values())]
        for form, value in whole.items():
            source, name = next((e[2:] for e in told if _is(e[0], value, e[1])), ("", ""))
            if source and form in own:
                meter.told[form, name] += 1
                line = source
        return line


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
