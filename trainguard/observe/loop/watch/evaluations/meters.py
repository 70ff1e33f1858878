"""Watches what adds up over an evaluation: whether it begins anew with each one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.loop import Probe
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 6  # of the user's code whose variables are looked at
_MOST = 16  # numbers that a meter has: what has more is something else
_KEPT = 256  # meters
_EVALUATIONS = 64  # that are looked at: a meter that is reset at times is not what is looked for
_LONGEST = 4096  # entries of a list that is added up
_COARSE = 0.02  # of a number that is said: what is rounded more than that says nothing
_RIGHT = 1e-6  # of it: what other orders of adding up make


@dataclass(slots=True)
class _Meter:
    """
    Something with numbers of its own, as they were when the last evaluation was over.

    told: evaluations of which a mean over earlier ones too was said; count, samples: how many it
    counted at the latest of these, and how many these had; source: where it was said.
    """

    name: str
    numbers: dict[str, float] = field(default_factory=dict)
    told: int = 0
    count: float = 0.0
    samples: int = 0
    source: str = ""


class Meters(Watcher):
    """
    The Probe event "meter": sums that were divided by the samples of several evaluations, and said.

    measured: how many samples the count was of; reference: how many the evaluation had; step: the
    number of evaluations after which such a mean was said.
    """

    makes = ("Probe:meter",)
    relies_on = ("LoggedValues",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._samples = self._clock = 0  # of the evaluation that goes on
        self._evaluations = 0
        self._meters: dict[int, _Meter] = {}

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Count what is evaluated, and look at meters once it is learned again."""
        if self._evaluations >= _EVALUATIONS:
            return
        if not forward.gradients:
            self._samples, self._clock = self._samples + forward.samples, forward.clock
        elif self._samples:
            samples, self._samples = self._samples, 0
            self._evaluations += 1
            said = list(self.recorder.watcher(LoggedValues).said_after(self._clock))
            for name, numbers, key in _find_meters():
                known = key in self._meters or len(self._meters) < _KEPT
                if known:
                    meter = self._meters.setdefault(key, _Meter(name))
                    self._compare(meter, numbers, samples, said)

    def finish(self) -> Iterable[Event]:
        """Return the meters that were said to be what they are not."""
        for meter in self._meters.values():
            if meter.told:
                yield Probe(
                    probe="meter",
                    measured=meter.count,
                    reference=float(meter.samples),
                    step=meter.told,
                    label=meter.name,
                    source=meter.source,
                )

    def _compare(
        self,
        meter: _Meter,
        numbers: dict[str, float],
        samples: int,
        said: list[tuple[float, float, str]],
    ) -> None:
        """Find a mean that was said, over the samples of this evaluation and of those before."""
        before, meter.numbers = meter.numbers, numbers
        counts = {k for k, v in numbers.items() if v - before.get(k, 0.0) == samples}
        self.looked |= {"meter"} if counts else set()
        for count in counts & set(before):
            if before[count] < samples / 2:  # it did begin anew, or counts something else
                continue
            for total in set(numbers) - counts:
                grown = numbers[total] / numbers[count]
                true = (numbers[total] - before.get(total, 0.0)) / samples
                source = next(
                    (s for v, r, s in said if _is(v, grown, r) and not _is(v, true, r)), ""
                )
                if source:
                    meter.told, meter.source = meter.told + 1, source
                    meter.count, meter.samples = numbers[count], samples
                    return


def _is(value: float, mean: float, rounding: float) -> bool:
    """Say whether a number that was said is a mean, or a hundred times that."""
    slack = rounding + _RIGHT * abs(value)
    near = any(abs(value - factor * mean) <= slack for factor in (1, 100))
    return near and rounding <= _COARSE * abs(value)


def _find_meters() -> Iterator[tuple[str, dict[str, float], int]]:
    """Yield what has a few numbers among the variables of the user's code: name, numbers, id."""
    seen = set()
    for frame in user_frames(_FRAMES):
        for name, value in variables_of(frame).items():
            if id(value) not in seen:
                seen.add(id(value))
                numbers = _numbers_of(value)
                if 1 < len(numbers) <= _MOST:
                    yield name, numbers, id(value)


def _numbers_of(value: Any) -> dict[str, float]:
    """Return the numbers that an object, a dictionary or a list has, by name."""
    if isinstance(value, type | ModuleType | torch.Tensor):
        return {}
    own = {"": value} if type(value) is list else value
    own = own if type(own) is dict else getattr(own, "__dict__", {})
    pairs = list(own.items()) if type(own) is dict and len(own) <= _MOST * 4 else []
    numbers: dict[str, float] = {}
    for name, each in pairs:
        if isinstance(name, str) and _is_number(each):
            numbers[name] = float(each.detach() if isinstance(each, torch.Tensor) else each)
        elif isinstance(name, str) and type(each) is list and 0 < len(each) <= _LONGEST:
            numbers |= _added_up(name, each)
    return numbers


def _added_up(name: str, values: list[Any]) -> dict[str, float]:
    """Return how many numbers a list holds and their sum; nothing if it holds something else."""
    if all(type(each) in (int, float) for each in values):
        return {f"len({name})": float(len(values)), f"sum({name})": float(sum(values))}
    if not all(map(_is_flat, values)):
        return {}
    total = sum(float(each.detach().sum(dtype=torch.float64)) for each in values)
    return {f"len({name})": float(sum(map(torch.numel, values))), f"sum({name})": total}


def _is_flat(value: Any) -> bool:
    """Say whether something is a plain tensor with a number of each sample, on the CPU."""
    plain = type(value) is torch.Tensor and value.dim() < 2
    return plain and value.is_cpu and not value.is_complex()


def _is_number(value: Any) -> bool:
    """Say whether something is one number that can be read at once."""
    return type(value) in (int, float) or (_is_flat(value) and value.dim() == 0)
