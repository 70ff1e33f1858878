"""Judgement of the accuracies that a script says, held against what was right in its losses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.base import Event
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.accuracy_bases import (
    PADDED,
    TRUE,
    Basis,
    Closeness,
    Count,
    ScoredPlace,
    bases_of,
    commonest,
    is_far,
    is_sharp,
    means_accuracy,
    means_evaluation,
    near_truths,
    score_places,
    truths,
)
from trainguard.invariants.loop.evidence import NUMBERS
from trainguard.invariants.loop.wording import events, place_of_log
from trainguard.invariants.wording import number

_FEW = 3  # values that agree on a mistake
_MOST = 0.8  # of the values that can be judged: what is said of other data may agree by chance
_NEAR = 2e-3  # of the value: what averaging in float16 may change
_SMALL = 0.02  # of the value: a wrong divisor that changes less is not worth a word
_PLAIN = 0.1  # of the value: a wrong divisor that changes less is a note
_UNEVEN = 0.1  # of the share: by less, another seed has another mean over batches
_SPREAD = 0.05  # of the smallest truth, up to the largest one: less is no proof of a divisor
_CHANCE = 0.03  # from one in as many as there are classes
_CLEAR = 0.2  # better than always naming the commonest class


@invariant("loop", evidence=NUMBERS)
def logged_accuracies_are_true(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A reported accuracy is the share of correct predictions.

    Judges: values under a name such as "val_acc" or "accuracy" (percentages and "97/100" too) by
        the scores and targets that loss functions, or evaluation passes, were given since the value
        before: 3 values or more, and 4 in 5 of those that can be judged, match one known mistake,
        and none the truth. The mistakes: what the loss ignores is counted, where that makes a tenth
        of a difference, or hides half of the errors; the highest score along another axis; each
        prediction against each target; one class always predicted; another divisor, the same each
        time; a count that goes on from one to the next; a validation accuracy that is that of
        training; zero, where most are right; means over batches of other sizes that are 0.1 of it
        from the share of all.
        Notes: that of the last of 3 batches or more; a logit held against one half, or rounded; a
        divisor off by less than a tenth; values that stay at chance.
    Allows: 2e-3 (limit) of the value and what was rounded off; means over batches that are near
        the share of all, whole sequences, the best so far, any batch since the value before.
    Misses: values that match nothing, as smoothed ones and other thresholds do; targets that are
        only made after the pass; losses called several times for each backward; soft targets.
    Why: stopping, choosing and publishing go by this number, and nothing else looks at it.
    Source: 935963004/LaBraM issue 15; traja-team/traja issue 57.
    """
    near = trace.limit("logged_accuracies_are_true", _NEAR)
    places = score_places(trace)
    said = (one for one in events(trace, Logged) if means_accuracy(one.name))
    known = (one for one in said if isfinite(one.value))
    ordered = sorted(known, key=lambda one: (one.channel, one.name, one.clock))
    told = set()
    for (_, name), group in groupby(ordered, key=lambda one: (one.channel, one.name)):
        fault = _judge(tuple(group), places, Closeness(near))
        if fault is not None and (name, fault.kind) not in told:
            told.add((name, fault.kind))
            yield _make_finding(trace, fault)


@dataclass(frozen=True, slots=True)
class _Fault:
    """A mistake that the values of one name agree on, and one that shows it."""

    kind: str
    said: Logged
    truth: Count
    times: int
    among: int
    divisor: float = 0.0


_Pair = tuple[Logged, list[Basis]]
_Find = Callable[[Logged, Basis, Closeness], Iterator[str]]


def _judge(said: Sequence[Logged], places: list[ScoredPlace], fit: Closeness) -> _Fault | None:
    """Return the mistake that the values of one name agree on, if there is one."""
    starts = [-1, *(one.clock for one in said)]
    pairs = [
        (one, bases)
        for start, one in zip(starts, said, strict=False)
        if not any(own.goes_on_after(one) for own in places)
        and (bases := [b for own in places for b in bases_of(own, start, one)])
    ]
    if len(pairs) < _FEW:
        return None
    if not any(one.value for one in said):
        return _zero(pairs)
    kept = [(one, bases) for one, bases in pairs if is_sharp(one)]
    # Where padding makes little of a difference, counting it is neither right nor a mistake.
    kept = [(o, b) for o, b in kept if not any(fit(o, v) for v in near_truths(o, b))]
    uneven = _agree(kept, _find_uneven, fit)
    if uneven is not None:
        return uneven
    true = [any(fit(one, value) for value in truths(one, bases)) for one, bases in kept]
    if len(kept) < _FEW or any(true[1:]):
        return None
    if true[0]:  # what goes on from one to the next is true once, the first time
        later = [pair for pair in kept[1:] if any(basis.goes_on for basis in pair[1])]
        return _agree(later, _find_growth, fit)
    return _agree(kept, _slips, fit) or _find_divisor(kept, fit) or _at_chance(kept)


def _slips(said: Logged, basis: Basis, fit: Closeness) -> Iterator[str]:
    """Yield the known mistakes that a value matches."""
    truth = basis.counts["right"]
    if basis.part != "evaluation" and means_evaluation(said.name):
        if basis.steady and (fit(said, truth.share) or fit(said, truth.mean)):
            yield "training"
        return
    for name, count in basis.counts.items():
        values = [count.share, count.mean]
        if name == "pairs":  # the sum over all pairs may be divided by the samples
            values.append(count.right / max(1.0, sqrt(count.of)))
        far = name not in (*PADDED, "first", "second") or is_far(basis, name)
        if name not in TRUE and far and any(fit(said, value) for value in values):
            yield name


def _find_uneven(said: Logged, basis: Basis, fit: Closeness) -> Iterator[str]:
    """Yield that a value is the mean over batches of an evaluation, and none over samples."""
    count = basis.counts["right"]
    far = abs(count.mean - count.share) > _UNEVEN * count.share
    if basis.part == "evaluation" and far and fit(said, count.mean) and not fit(said, count.share):
        yield "uneven"


def _find_growth(said: Logged, basis: Basis, fit: Closeness) -> Iterator[str]:
    """Yield that a value counts what was right before too: in earlier epochs or evaluations."""
    if basis.goes_on:
        if fit(said, basis.so_far.right / max(1.0, basis.counts["right"].of)):
            yield "grown"
        elif fit(said, basis.so_far.share):
            yield "running"


def _agree(pairs: Sequence[_Pair], find: _Find, fit: Closeness) -> _Fault | None:
    """Return the mistake that most values agree on, all about one place and one part of it."""
    found: dict[tuple[str, str, str], list[tuple[Logged, Basis]]] = {}
    for said, bases in pairs:
        measured = [basis for basis in bases if basis.part == "evaluation"]
        for basis in bases:
            for kind in find(said, basis, fit):
                of = measured if kind == "training" else [basis]
                own = found.setdefault((kind, basis.place, basis.part), [])
                own.extend((said, one) for one in of[:1])
    least = max(_FEW - (find is _find_growth), _MOST * len(pairs))
    for kind in _FAULTS:
        for (one, _, _), agreed in found.items():
            values = {said.value for said, _ in agreed}
            if one == kind and len(agreed) >= least and (len(values) > 1 or kind in _CONSTANT):
                return _fault(kind, agreed[-1], len(agreed), len(pairs))
    return None


def _fault(
    kind: str, pair: tuple[Logged, Basis], times: int, among: int, divisor: float = 0.0
) -> _Fault:
    """Return the fault that one value shows."""
    said, basis = pair
    return _Fault(kind, said, basis.counts["right"], times, among, divisor)


def _find_divisor(pairs: Sequence[_Pair], fit: Closeness) -> _Fault | None:
    """Return the mistake of a divisor that is the same each time, and not what was counted."""
    found: dict[tuple[str, str], list[tuple[Logged, Basis]]] = {}
    for said, bases in pairs:
        for basis in bases:
            found.setdefault((basis.place, basis.part), []).append((said, basis))
    for agreed in found.values():
        truths = [basis.counts["right"].share for _, basis in agreed]
        if len(agreed) < max(_FEW, _MOST * len(pairs)) or min(truths) <= 0:
            continue
        ratios = [said.value / truth for (said, _), truth in zip(agreed, truths, strict=True)]
        loose = fit.near + max(said.rounding / abs(said.value) for said, _ in agreed if said.value)
        even = min(ratios) > 0 and max(ratios) / min(ratios) - 1 <= 2 * loose
        if even and max(truths) / min(truths) - 1 >= max(_SPREAD, 10 * loose):
            return _name_divisor(agreed, len(pairs), ratios)
    return None


def _name_divisor(
    agreed: Sequence[tuple[Logged, Basis]], among: int, ratios: Sequence[float]
) -> _Fault | None:
    """Return the fault of a divisor: what was right, over what was said."""
    count = agreed[-1][1].counts["right"]
    percent = max(said.value for said, _ in agreed) > 1
    calls = sum(one.calls for one in agreed[-1][1].scores)
    if percent and abs(ratios[-1] * calls / count.of - 1) > _SMALL:
        ratios = [ratio / 100 for ratio in ratios]
    off = abs(ratios[-1] - 1)
    if off <= _SMALL:
        return None
    kind = "divided" if off > _PLAIN else "nearly"
    return _fault(kind, agreed[-1], len(agreed), among, count.of / ratios[-1])


def _zero(pairs: Sequence[_Pair]) -> _Fault | None:
    """Return the mistake of an accuracy that is always zero, where many are right."""
    late = pairs[-_FEW:]
    clear = all(
        basis.scores[-1].sole
        and basis.counts["right"].share >= max(_CLEAR, 2 / basis.scores[-1].classes)
        for _, bases in late
        for basis in bases
    )
    alone = all(len({basis.place for basis in bases}) == 1 for _, bases in late)
    coarse = any(said.rounding > _CLEAR / 4 for said, _ in pairs)
    if not clear or not alone or coarse:
        return None
    return _fault("zero", (late[-1][0], late[-1][1][-1]), len(pairs), len(pairs))


def _at_chance(pairs: Sequence[_Pair]) -> _Fault | None:
    """Return the suspicion of values that stay at chance while the predictions become good."""
    bases = [basis for _, own in pairs for basis in own]
    unit = 100 if max(said.value for said, _ in pairs) > 1 else 1
    stays = all(
        abs(said.value / unit - 1 / basis.scores[-1].classes) <= _CHANCE
        for said, own in pairs
        for basis in own
    )
    clear = all(
        basis.scores[-1].sole and basis.counts["right"].share >= commonest(basis) + _CLEAR
        for _, own in pairs[-_FEW:]
        for basis in own
    )
    if not stays or not clear or len({basis.place for basis in bases}) > 1:
        return None
    return _fault("chance", (pairs[-1][0], bases[-1]), len(pairs), len(pairs))


_CONSTANT = ("first", "second")
_NOTES = ("final", "running", "nearly", "chance")
_FAULTS = {
    **dict.fromkeys(
        PADDED,
        ("counts what the loss leaves out", "padding is counted: divide by what is not ignored"),
    ),
    "pairs": (
        "compares each prediction with each target",
        "a shape (N, 1) against (N,) expands to (N, N): squeeze one of them",
    ),
    "axis": (
        "takes the highest score along another axis than that of the classes",
        "give argmax the dimension of the classes",
    ),
    "training": (
        "is that of the training, though it is called validation",
        "the predictions and targets of the training batch may still be in use",
    ),
    "uneven": (
        "is the mean over its batches, of which some are smaller",
        "add up what is right, and divide by the number of samples",
    ),
    "grown": ("adds up from one time to the next", "the count may never be set back to zero"),
    "running": ("goes on from one time to the next", "the average may never be reset"),
    "final": (
        "is that of the last batch of each evaluation",
        "set the counts back to zero before the loop over batches, not in it",
    ),
    "half": (
        "holds logits against one half",
        "a probability of one half is a logit of 0, or apply the sigmoid first",
    ),
    "rounded": ("rounds logits", "apply the sigmoid before rounding"),
    "first": (
        "counts as if class 0 were always predicted",
        "argmax over a single output is always 0: hold its probability against one half",
    ),
    "second": (
        "counts as if class 1 were always predicted",
        "a sigmoid of what is a probability already is never below one half",
    ),
}
_FAULTS_OF_SIZE = {
    "divided": "is divided by another number than that of its predictions",
    "nearly": "is divided by another number than that of its predictions",
    "zero": "is always zero, though many predictions are right",
    "chance": "stays at chance, though most predictions are right",
}


def _make_finding(trace: Trace[Event], fault: _Fault) -> Finding:
    """Return the finding about what is said under one name."""
    said, truth = fault.said, fault.truth
    default = (_FAULTS_OF_SIZE.get(fault.kind, ""), _remedy(fault))
    summary, why = _FAULTS.get(fault.kind, default)
    return Finding(
        f"the accuracy that `{trace.subject}` logs {summary}",
        place_of_log(said.name, said.channel, said.step),
        number(said.value) + f" ({fault.times} of {fault.among} times)",
        number(truth.share) + f", {truth.right:.0f} right of {truth.of:.0f}",
        why=why,
        rank=Rank.NOTE if fault.kind in _NOTES else Rank.BROKEN,
        event=said,
    )


def _remedy(fault: _Fault) -> str:
    """Return what to look at, of a mistake that only sizes tell."""
    if fault.divisor:
        return f"the divisor seems to be {fault.divisor:.0f}; there were {fault.truth.of:.0f}"
    if fault.kind == "zero":
        return "max() returns values and then indices: the indices are the classes"
    return "hold the indices of the highest scores against the targets, row by row"
