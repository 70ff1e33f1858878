"""
Metrics that are no means over samples, of all batches of an evaluation at once, and mistaken.

Each is computed by all conventions in use, and by the known mistakes: as the mean of the metrics of
the batches, of decisions where scores are meant, without its root, with arguments exchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Batch = tuple[Array, Array]  # scores and targets
Value = tuple[str, str, float]  # a metric, a way to compute it ("true" or a mistake), its value

_MOST_CLASSES = 64
_RATES = ("precision", "recall", "f1")


def values_of(batches: Sequence[Batch], *, logits: bool = False) -> Iterator[Value]:
    """
    Yield the metrics of an evaluation.

    The scores are (N,) or (N, classes) and the targets (N,) and integral; or both are of one shape.
    logits: whether scores of both signs are logits for sure, and no fitted zeros and ones.
    """
    scores, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    if targets.dtype.kind in "iub" and scores.ndim == targets.ndim + 1 == 2:
        yield from _of_classes(batches, scores, targets)
    elif scores.shape == targets.shape:
        hard = bool(np.isin(targets, (0, 1)).all())
        if hard:
            yield from _of_probabilities(batches, scores, logits)
        else:
            yield from _of_numbers(batches, scores, targets)


def _of_classes(batches: Sequence[Batch], scores: Array, targets: Array) -> Iterator[Value]:
    """Yield metrics of the classes with the highest scores."""
    classes = scores.shape[1]
    if not 1 < classes <= _MOST_CLASSES or not 0 <= targets.min() <= targets.max() < classes:
        return
    named = [(own.argmax(1), target) for own, target in batches]
    yield from _of_decisions(named, classes)
    if classes == 2:
        yield from _of_ranks([(own[:, 1] - own[:, 0], target) for own, target in batches], 0.0)


def _of_probabilities(batches: Sequence[Batch], scores: Array, logits: bool) -> Iterator[Value]:
    """Yield metrics of the scores of one class, or of several that exclude no other."""
    flat = [(own.ravel(), target.ravel().astype(int)) for own, target in batches]
    are_probabilities = scores.min() >= 0 and scores.max() <= 1
    limit = 0.5 if are_probabilities else 0.0
    yield from _of_decisions(_decide(flat, limit), 2)
    columns = [_by_column(own, target) for own, target in batches]
    yield from _of_columns(columns, limit, "true")
    yield from _of_overlaps(columns, limit, "true")
    if logits and not are_probabilities:
        halves = _of_decisions(_decide(flat, 0.5), 2)
        yield from ((name, "half", value) for name, way, value in halves if way == "true")
        yield from _of_columns(columns, 0.5, "half")
        yield from _of_overlaps(columns, 0.5, "half")
    if columns[0][0].shape[1] <= _MOST_CLASSES:  # nobody ranks the places of pictures
        yield from _of_ranks(flat, limit)


def _decide(batches: Sequence[Batch], limit: float) -> list[Batch]:
    """Return what is decided by scores above a limit, beside the targets."""
    return [((scores > limit).astype(int), target) for scores, target in batches]


def _by_column(scores: Array, targets: Array) -> Batch:
    """Return scores and targets of (N, classes)."""
    return scores.reshape(len(scores), -1), targets.reshape(len(targets), -1).astype(int)


def _of_columns(batches: Sequence[Batch], limit: float, way: str) -> Iterator[Value]:
    """Yield precision, recall and F1 of several classes, as their means over classes."""
    scores, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    if not 1 < scores.shape[1] <= _MOST_CLASSES:
        return
    named = scores > limit
    hits, came = (named & (targets == 1)).sum(0), targets.sum(0)
    for name, rates in zip(_RATES, _rates(hits, named.sum(0), came), strict=True):
        yield name, way, float(rates.mean())
        yield name, way, float((rates * came).sum() / max(1, came.sum()))


def _of_overlaps(batches: Sequence[Batch], limit: float, way: str) -> Iterator[Value]:
    """Yield how masks of (N, places) overlap: of all at once, by batches, and by samples."""
    if batches[0][0].shape[1] < 2:
        return
    pairs = [(scores > limit, targets > 0) for scores, targets in batches]
    both = [np.stack([(a & b).sum(1), a.sum(1), b.sum(1)]).astype(float) for a, b in pairs]
    rest = [np.stack([(~a & ~b).sum(1), (~a).sum(1), (~b).sum(1)]) for a, b in pairs]
    with np.errstate(all="ignore"):
        for name, part in (("iou", _share), ("dice", _twice_share)):
            whole, background = (float(part(sum(t.sum(1) for t in own))) for own in (both, rest))
            each = np.concatenate([part(own) for own in both])
            filled = [np.nan_to_num(each, nan=value).mean() for value in (0.0, 1.0)]
            by_batch = np.array([part(own.sum(1)) for own in both])
            means = [_mean_of_known(each), *filled, _mean_of_known(by_batch)]
            values = [whole, (whole + background) / 2, *means]
            yield from ((name, way, float(value)) for value in values)


def _mean_of_known(values: Array) -> float:
    """Return the mean of the numbers that are defined; nan, without a warning, of none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else nan


def _share(counts: Array) -> Array:
    """Return of what one of two masks has what both have; nan where neither has anything."""
    return np.asarray(counts[0] / (counts[1] + counts[2] - counts[0]))


def _twice_share(counts: Array) -> Array:
    """Return of what two masks have together twice what both have; nan where that is nothing."""
    return np.asarray(2 * counts[0] / (counts[1] + counts[2]))


def _rates(hits: Array, named: Array, came: Array) -> Array:
    """Return precision, recall and F1 (rows) of each class."""
    return np.stack([hits / np.maximum(of, 0.5) for of in (named, came, (named + came) / 2)])


def _of_decisions(batches: Sequence[Batch], classes: int) -> Iterator[Value]:
    """Yield precision, recall and F1, of one class, and as means over classes."""
    tables = [_confusions(named, target, classes) for named, target in batches]
    whole = rates_of(np.sum(tables, axis=0))
    each = [rates_of(table) for table in tables]
    sizes = [len(target) for _, target in batches]
    for place, name in enumerate(_RATES):
        for kind in range(whole.shape[1]):
            yield name, "true", float(whole[place, kind])
            yield from _of_batches(name, [rates[place, kind] for rates in each], sizes)
    for place, name in enumerate(("recall", "precision")):
        yield from ((name, "exchanged", float(value)) for value in whole[place])


def _confusions(named: Array, target: Array, classes: int) -> Array:
    """Return how often each class (rows) was taken for each (columns)."""
    return np.bincount(target * classes + named, minlength=classes**2).reshape(classes, classes)


def rates_of(table: Array) -> Array:
    """Return precision, recall and F1 (rows): by class if there are two, then the usual means."""
    hits, named, came = np.diag(table).astype(float), table.sum(0), table.sum(1)
    rates, there = _rates(hits, named, came), named + came > 0
    means = [rates[:, there].mean(1), rates.mean(1), rates @ (came / max(1, came.sum()))]
    means.append(np.full(3, hits.sum() / max(1, came.sum())))
    # F1 of the means of precision and recall, as some compute it.
    both = [(p, r, 2 * p * r / (p + r) if p + r else 0.0) for p, r, _ in means]
    own = [*rates.T] if len(table) == 2 else []
    return np.stack([*own, *means, *map(np.array, both)], axis=1)


def _of_ranks(batches: Sequence[Batch], limit: float) -> Iterator[Value]:
    """Yield the area under the curve of true positives, and the average precision."""
    scores, targets = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    sizes = [len(target) for _, target in batches]
    for area in (_area, _average_precision):
        yield "auc", "true", area(scores, targets)
        yield from _of_batches("auc", [area(*batch) for batch in batches], sizes)
    yield "auc", "decisions", _area((scores > limit).astype(float), targets)
    yield "area", "true", _area(scores, targets)
    yield "area", "spread", _spread_of_area(targets)


def _area(scores: Array, targets: Array) -> float:
    """Return the share of pairs of a positive and a negative in which the former scores higher."""
    positive = int(targets.sum())
    negative = len(targets) - positive
    if not positive or not negative:
        return nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place.ravel()]  # of ties the mean
    return float((ranks[targets == 1].sum() - positive * (positive + 1) / 2) / positive / negative)


def _spread_of_area(targets: Array) -> float:
    """Return the standard deviation of the area of scores that know nothing of the targets."""
    positive = int(targets.sum())
    negative = len(targets) - positive
    pairs = 12 * positive * negative  # the variance of Mann and Whitney's statistic
    return float(((len(targets) + 1) / pairs) ** 0.5) if pairs else nan


def _average_precision(scores: Array, targets: Array) -> float:
    """Return the mean precision at each positive, of the samples in falling order of scores."""
    hits = targets[np.argsort(-scores, kind="stable")]
    places = np.flatnonzero(hits) + 1
    return float((np.arange(1, len(places) + 1) / places).mean()) if len(places) else nan


def _of_numbers(batches: Sequence[Batch], scores: Array, targets: Array) -> Iterator[Value]:
    """Yield metrics of numbers that are to be met."""
    sizes = [len(target) for _, target in batches]
    for name, metric in _NUMBERS.items():
        whole, each = metric(scores, targets), [metric(*batch) for batch in batches]
        for kind, value in enumerate(whole):
            yield name, "true", value
            yield from _of_batches(name, [values[kind] for values in each], sizes)
    yield "rmse", "squared", float(((scores - targets) ** 2).mean())
    yield from (("r2", "exchanged", value) for value in _explained(targets, scores))


def _root(scores: Array, targets: Array) -> list[float]:
    """Return the root of the mean square error, and the mean of those of the columns."""
    squares = (scores - targets).reshape(len(targets), -1) ** 2
    return [float(squares.mean() ** 0.5), float((squares.mean(0) ** 0.5).mean())]


def _explained(scores: Array, targets: Array) -> list[float]:
    """Return the share of the variance that is explained: mean over columns, and of all at once."""
    wanted = targets.reshape(len(targets), -1)
    missed = ((scores.reshape(wanted.shape) - wanted) ** 2).sum(0)
    spread = ((wanted - wanted.mean(0)) ** 2).sum(0)
    whole = ((wanted - wanted.mean()) ** 2).sum()
    with np.errstate(all="ignore"):
        total = missed.sum() / np.array([spread.sum(), whole])
        return [float((1 - missed / spread).mean()), *(1 - total).tolist()]


def _correlation(scores: Array, targets: Array) -> list[float]:
    """Return Pearson's correlation of all numbers."""
    one, other = scores.ravel() - scores.mean(), targets.ravel() - targets.mean()
    with np.errstate(all="ignore"):
        return [float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))]


_NUMBERS: dict[str, Callable[[Array, Array], list[float]]] = {
    "rmse": _root,
    "r2": _explained,
    "correlation": _correlation,
}


def perplexities(losses: Sequence[tuple[float, int]]) -> Iterator[Value]:
    """Yield the perplexity of mean losses of so many targets each: exp of their mean."""
    values, counts = np.array(losses, float).reshape(-1, 2).T
    if counts.sum():
        with np.errstate(over="ignore"):
            yield "perplexity", "true", float(np.exp((values * counts).sum() / counts.sum()))
            yield "perplexity", "true", float(np.exp(values.mean()))
            yield from _of_batches("perplexity", np.exp(values), counts)


def _of_batches(name: str, values: Any, sizes: Any) -> Iterator[Value]:
    """Yield the means of what was computed for each batch, of those for which it is defined."""
    known = np.isfinite(values)
    if len(values) > 1 and known.any():
        own, weights = np.array(values)[known], np.array(sizes)[known]
        yield name, "batches", float(own.mean())
        yield name, "batches", float((own * weights).sum() / weights.sum())
