"""
Explore a loss with one probe, keep the worst point of everything it measures, and shrink it.

A probe is one function: it evaluates a batch of points and yields, for each thing it measures, a
`Measured` with one number per point. Everything else (drawing, closing in on the worst points,
counting, finding the smallest structure and the roundest numbers) is the same for all probes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from trainguard.events.trace import Sample
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.tools.points import Box, Points, around, draw

_ELITES = 32
_OF_GRADIENTS = ("gradient", "largest_gradient", "difference", "plateau", "unreached")
_CLOSING_IN = 4  # every fourth round


class Key(NamedTuple):
    """What a number belongs to: the quantity, the input and a word that tells alike ones apart."""

    quantity: str
    input: str = ""
    label: str = ""


@dataclass
class Measured:
    """
    One number per point, [N], with what it takes to judge it.

    badness: what is kept is the point of largest badness; nan counts as worst.
    coordinate: the flat index of the element of the input that the number belongs to.
    bad: the points that are like the worst one, where that is a yes or no.
    points: the points themselves, where the probe moved them.
    elements: every element of the input's quantity, [N, M]: the largest is measured, and its place
        is only looked up for the points that are kept.
    """

    measured: Tensor
    badness: Tensor
    reference: Tensor | None = None
    scale: Tensor | None = None
    coordinate: Tensor | None = None
    bad: Tensor | None = None
    points: Points | None = None
    elements: Tensor | None = None

    def sample(self, key: Key, case: int, index: int, points: Points) -> Sample:
        """Return what was measured at one point, as numbers."""
        points = self.points or points
        inputs = tuple((name, _as_tuples(t[index].tolist())) for name, t in points.items())
        measured, element = self._place(key, index, points)
        return Sample(
            case=case,
            quantity=key.quantity,
            input=key.input,
            label=key.label,
            measured=measured,
            reference=_at(self.reference, index, torch.nan),
            scale=_at(self.scale, index, 0.0),
            index=element,
            point=inputs,
        )

    def _place(self, key: Key, index: int, points: Points) -> tuple[float, tuple[int, ...]]:
        """Return the number measured at one point, and the element of the input it belongs to."""
        measured, at = self.measured[index], self.coordinate
        place = None if at is None else at[index]
        if self.elements is not None:
            place = self.elements[index].abs().argmax()
            measured = self.elements[index, place]
        if place is None or not key.input:
            return float(measured), ()
        axes = torch.unravel_index(place, points[key.input].shape[1:])
        return float(measured), tuple(int(axis) for axis in axes)


Probe = Callable[[Evaluator, Points], Iterator[tuple[Key, Measured]]]


class Worst(NamedTuple):
    """The worst sample of a key so far, and how bad it is."""

    badness: float
    sample: Sample


@dataclass(frozen=True)
class Effort:
    """How much is explored: structures drawn, rounds for each, and points in a round."""

    structures: int
    rounds: int
    batch: int | None = None


def explore(
    probe: Probe, made: Evaluator, case: int, effort: Effort, generator: Generator
) -> dict[Key, Worst]:
    """Measure many points, some of them around the worst so far, and keep the worst of each key."""
    worst: dict[Key, Worst] = {}
    elites: Points | None = None
    size = min(effort.batch or made.batch, made.batch)
    for turn in range(effort.rounds):
        if elites is not None and turn % _CLOSING_IN == _CLOSING_IN - 1:
            points = around(made.box, elites, size, generator)
        else:
            points = draw(made.box, size, generator)
        chosen: list[Tensor] = []
        for key, measured in probe(made, points):
            badness = measured.badness.nan_to_num(nan=torch.inf)
            leaders = _leaders(badness)
            best = int(leaders[0])
            count = 0 if measured.bad is None else int(measured.bad.sum())
            sample = replace(measured.sample(key, case, best, points), bad=count, points=size)
            worst[key] = _join(worst.get(key), Worst(float(badness[best]), sample))
            chosen.append(leaders)
        if chosen:
            rows = torch.cat(chosen)
            fresh = {name: t[rows] for name, t in points.items()}
            elites = fresh if elites is None else _latest(fresh, elites)
    return worst


def is_confirmed(probe: Probe, made: Evaluator, case: int, worst: dict[Key, Worst]) -> bool:
    """
    Say whether the worst gradients are the same when their points are called one by one.

    A mean that is clamped looks like a plain mean until a batch holds a sample beyond the clamp.
    """
    single = made.alone()
    for key, (_, sample) in worst.items():
        if key.quantity in _OF_GRADIENTS and sample.point:
            again = measure(probe, single, key, case, tensors(sample.point, made.box))
            if again and not _alike(again[0].measured, sample.measured):
                return False
    return True


def merge(found: Sequence[dict[Key, Worst]]) -> tuple[Sample, ...]:
    """Join what was found in several structures: the worst of each key, all counts added up."""
    joined: dict[Key, Worst] = {}
    for worst in found:
        for key, one in worst.items():
            joined[key] = _join(joined.get(key), one)
    return tuple(one.sample for one in joined.values())


def measure(probe: Probe, made: Evaluator, key: Key, case: int, points: Points) -> list[Sample]:
    """Measure every given point and return a sample for each of them."""
    for found, measured in probe(made, points):
        if found == key:
            count = len(measured.measured)
            return [measured.sample(key, case, i, points) for i in range(count)]
    return []


def tensors(point: tuple[tuple[str, object], ...], box: Box) -> Points:
    """Return a sample's point as a batch of one point."""
    return box.cast(
        {name: torch.tensor(values, dtype=_wide(values)).unsqueeze(0) for name, values in point}
    )


def _alike(a: float, b: float) -> bool:
    """Say whether two numbers are the same but for rounding; nan is like nan."""
    return isclose(a, b, rel_tol=1e-2, abs_tol=1e-5) or (a != a and b != b)


def _join(old: Worst | None, new: Worst) -> Worst:
    """Return the worse of two, the earlier one where they tie, with the counts of both."""
    if old is None:
        return new
    badness, sample = new if new.badness > old.badness else old
    bad, points = old.sample.bad + new.sample.bad, old.sample.points + new.sample.points
    return Worst(badness, replace(sample, bad=bad, points=points))


def _leaders(badness: Tensor) -> Tensor:
    """Return the worst of all points first, then the worst of each of a few stretches of them."""
    width = max(len(badness) // _ELITES, 1)
    whole = badness[: len(badness) // width * width].view(-1, width)
    each = whole.argmax(1) + torch.arange(len(whole), device=badness.device) * width
    return torch.cat([badness.argmax().view(1), each[: _ELITES - 1]])


def _latest(new: Points, old: Points) -> Points:
    """Keep the latest of the worst points of all rounds."""
    return {name: torch.cat([new[name], t])[: 8 * _ELITES] for name, t in old.items()}


def _as_tuples(values: object) -> object:
    """Turn nested lists into nested tuples."""
    return tuple(_as_tuples(value) for value in values) if isinstance(values, list) else values


def _wide(values: object) -> torch.dtype | None:
    """Return float64 for nested tuples of floats, so that nothing is rounded on the way."""
    while isinstance(values, tuple) and values:
        values = values[0]
    return torch.float64 if isinstance(values, float) else None


def _at(tensor: Tensor | None, index: int, default: float) -> float:
    """Return one entry of a tensor that may be absent."""
    return default if tensor is None else float(tensor[index])
