"""What a meter's numbers may stand for: means, and metrics of what was counted right and wrong."""

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainguard.observe.loop.metric_values import rates_of, values_of
from trainguard.observe.tools.arrays import array_of
from trainguard.observe.tools.local_values import local_values

Array = NDArray[np.float64]
Numbers = dict[str, Array]

MOST = 16  # numbers of their own that a meter has: what has more is something else
_LARGEST = 4096  # entries of a table of counts
_LONGEST = 2**13  # entries of a list
_PAIR = "of "  # begins the name of two lists
_PAIRED = 4  # lists of one owner that are paired
_CLASSES = 64
_COUNTED = 5  # sorts of things that are counted: right, wrong, missed


def numbers_of(owner: Any) -> Numbers:
    """Return the numbers, counts and sums of lists that a dictionary has, by its words."""
    numbers: Numbers = {}
    lists: dict[str, Array] = {}
    for name, value in owner.items():
        if not isinstance(name, str):
            continue
        if type(value) is list:
            values = _flatten(value)
            if values is not None:
                numbers[f"len({name})"] = np.array(len(values), np.float64)
                numbers[f"sum({name})"] = np.array(values.sum())
                lists[name] = values
        elif (own := _read(value)) is not None:
            numbers[name] = own
    numbers = {name: each for name, each in numbers.items() if np.isfinite(each).all()}
    for one, other in combinations(lists, 2):
        table = _cross(lists[one], lists[other])
        if table is not None:
            numbers[f"{one} x {other}"] = table
    return numbers | _pair(lists)


def _pair(lists: Numbers) -> Numbers:
    """Return pairs of lists of finite numbers that are as long: (2, N), by both their names."""
    if len(lists) > _PAIRED:
        return {}
    return {
        f"{_PAIR}{one}, {other}": np.stack([lists[one], lists[other]])
        for one, other in combinations(lists, 2)
        if len(lists[one]) == len(lists[other]) > 1
        and np.isfinite([lists[one], lists[other]]).all()
    }


def added_to(begun: Numbers, now: Numbers) -> dict[str, tuple[Array, Array]]:
    """Return the pairs of lists that were there and have grown since: all of each, and the rest."""
    return {
        name: (pair, pair[:, begun[name].shape[1] :])
        for name, pair in now.items()
        if name.startswith(_PAIR) and name in begun
        if begun[name].shape[1] < pair.shape[1]
        and np.array_equal(begun[name], pair[:, : begun[name].shape[1]])
    }


def metrics_of(pairs: Numbers) -> dict[str, float]:
    """Return what pairs of lists, of scores and of their targets, may be said to come to."""
    found: dict[str, float] = {}
    for name, pair in pairs.items():
        for order in ((0, 1), (1, 0)):
            scores, targets = pair[order[0]], pair[order[1]]
            if targets.min() != targets.max():
                metrics = values_of([(scores, targets)])
                kinds = [
                    (f"{n}{order} of {name}", value) for n, way, value in metrics if way == "true"
                ]
                found |= {f"{kind} {place}": value for place, (kind, value) in enumerate(kinds)}
    return {form: value for form, value in found.items() if np.isfinite(value)}


def _read(value: Any) -> Array | None:
    """Return a number, or a small table of them that can be read at once; None for all else."""
    if type(value) in (int, float):
        return np.array(value, np.float64)
    if type(value) is torch.Tensor:
        if not value.is_cpu or value.is_complex() or value.layout != torch.strided:
            return None
        small = value.dim() < 3 and 0 < value.numel() <= _LARGEST
        values = local_values(value) if small else None  # inside of torch.func there are none
        return None if values is None else array_of(values.double()).copy()
    if isinstance(value, np.ndarray | np.generic):
        small = value.ndim < 3 and 0 < value.size <= _LARGEST and value.dtype.kind in "iuf"
        return np.array(value, np.float64) if small else None
    return None


def _flatten(values: list[Any]) -> Array | None:
    """Return the numbers of a list of numbers or of vectors; None where it holds other things."""
    if not 0 < len(values) <= _LONGEST:
        return None
    if all(type(each) in (int, float) for each in values):
        return np.array(values, np.float64)
    parts: list[Array] = []
    for each in values:
        part = _read(each)
        if part is None or part.ndim > 1:
            return None
        parts.append(part.ravel())
    flat = np.concatenate(parts)
    return flat if len(flat) <= 4 * _LONGEST else None


def _cross(one: Array, other: Array) -> Array | None:
    """Return how often each class of one list meets each of another; None where it has none."""
    if len(one) != len(other) or len(one) < 2:
        return None
    both = np.concatenate([one, other])
    if (
        not np.isfinite(both).all()
        or (both != both.round()).any()
        or both.min() < 0
        or both.max() >= _CLASSES
    ):
        return None
    classes = int(both.max()) + 1
    pairs = (one * classes + other).astype(int)
    table = np.zeros((_CLASSES, _CLASSES))
    table[:classes, :classes] = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return table


def readings(
    numbers: Numbers, counts: set[str], steady: set[str], of: tuple[int, int]
) -> dict[str, float]:
    """
    Return what a meter's numbers may be said to come to, by how it is computed.

    counts: those of its numbers that count samples or batches. steady: those that grow from pass to
    pass. of: how many samples and batches the evaluation has.
    """
    with np.errstate(all="ignore"):
        forms = _forms(numbers, counts, steady, of)
        return {form: float(value) for form, value in forms if np.isfinite(value)}


def _forms(
    numbers: Numbers, counts: set[str], steady: set[str], of: tuple[int, int]
) -> Iterator[tuple[str, Any]]:
    """Yield each form and what it comes to."""
    sums = {name: table.sum() for name, table in numbers.items()}
    for name, total in sums.items():
        if name not in counts:
            yield from ((f"{name} / {count}", total / sums[count]) for count in counts)
            each = set(of) - {0, 1} if name in steady else ()
            yield from ((f"{name} / {count}", total / count) for count in each)
    numbers = {name: table for name, table in numbers.items() if name in steady}
    whole = {n: t for n, t in numbers.items() if (t == t.round()).all() and (t >= 0).all()}
    kinds = {n: t for n, t in whole.items() if t.ndim < 2 and not n.startswith(("len(", "sum("))}
    if len(kinds) <= _COUNTED:
        yield from _of_hits(kinds)
    for name, table in whole.items():
        if table.ndim == 2 and len(table) == table.shape[1] > 1:
            yield from _of_table(name, table)


def _of_hits(kinds: Numbers) -> Iterator[tuple[str, Any]]:
    """Yield metrics of what is counted as right and as wrong: of each class, or of all."""
    for (hit, right), (other, wrong) in permutations(kinds.items(), 2):
        if right.shape == wrong.shape:
            yield from _means(f"{hit} / ({hit} + {other})", right, right + wrong)
    for hit, right in kinds.items():
        rest = [name for name in kinds if name != hit and kinds[name].shape == right.shape]
        for one, other in combinations(rest, 2):
            wrong = kinds[one] + kinds[other]
            yield from _means(f"F1 of {hit}, {one}, {other}", 2 * right, 2 * right + wrong)
            yield from _means(f"IoU of {hit}, {one}, {other}", right, right + wrong)


def _of_table(name: str, table: Array) -> Iterator[tuple[str, Any]]:
    """Yield metrics of a table of how often each class was taken for each."""
    classes = int(np.flatnonzero(table.sum(0) + table.sum(1)).max(initial=0)) + 1
    table = table[:classes, :classes]
    rates = rates_of(table)
    yield f"accuracy of {name}", np.trace(table) / max(1, table.sum())
    for row, metric in zip(rates, ("precision", "recall", "F1"), strict=True):
        yield from ((f"{metric} {kind} of {name}", value) for kind, value in enumerate(row))
    hits = np.diag(table)
    yield from _means(f"IoU of {name}", hits, table.sum(0) + table.sum(1) - hits)


def _means(form: str, part: Array, whole: Array) -> Iterator[tuple[str, Any]]:
    """Yield a share of all, and the means of those of the classes: of all, and of those there."""
    yield form, part.sum() / max(1, whole.sum())
    if part.size > 1:
        shares = part / np.maximum(whole, 1)
        yield f"mean of {form}", shares.mean()
        yield f"mean of {form} where any", shares[whole > 0].mean() if (whole > 0).any() else 0.0
