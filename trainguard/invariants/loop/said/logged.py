"""Judgement of what a script says of itself: its norms, rates and losses are the true ones."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite

from trainguard.core.catalogue import SOON, invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.names import words_of
from trainguard.events.base import Event
from trainguard.events.loop import Logged, Step
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import NUMBERS
from trainguard.invariants.loop.wording import Course, courses, events, finite, place_of_log
from trainguard.invariants.wording import number

_FEW = 3
_PLAIN = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"}  # no schedule of their own
_BESIDE = {"train", "training", "trainer", "step", "batch", "optim", "optimizer", "debug"}
_NAMES = {
    "norm": {"grad norm", "gradient norm", "grads norm", "gnorm", "gradnorm", "total norm",
             "grad norm total", "global norm", "global grad norm", "total grad norm"},
    "rate": {"lr", "learning rate"},
    "loss": {"loss", "total loss"},
}  # fmt: skip


@invariant("loop", evidence=NUMBERS, live=SOON)
def logged_values_are_true(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Logged gradient norms, learning rates and training losses are the true values.

    Judges: values under a usual name ("train/grad_norm", "lr", "loss"), by the steps around them,
        where more than half are a known mistake and at 3 steps or more: zero where the truth is
        not, still scaled by a gradient scaler, the rate of the first step or the highest one while
        that in force differs by a tenth, rates that change by a tenth and more, at 3 steps, where
        that in force never does; norms that are zero where no step was made, and true
        elsewhere. A norm taken after clipping, while clipping binds, is a note.
    Allows: 2e-3 (limit) of the value and what was rounded off; the values of the steps before and
        after; losses of single micro-batches, their sums and means, before or after a division.
    Misses: values that match nothing, as smoothed ones and norms of another order do; names of
        their own; what is said after steps of a long run that are not recorded.
    Why: the one number that should warn of an explosion is nothing, and nobody knows.
    Source: Lightning-AI/pytorch-lightning issue 272; pytorch/examples issue 64.
    """
    near = trace.limit("logged_values_are_true", 2e-3)
    every = courses(trace)
    for series in _series(trace):
        looks = [_look(series.kind, every, said, near) for said in series.said]
        windows = _by_window(series.said, looks)
        mixed = [w for w in windows if series.kind == "norm" and _is_mixed(w)]
        judged = Counter(_verdict(window) for window in windows)
        if len(mixed) >= _FEW and 2 * len(mixed) > len(windows) - judged[""]:
            zeros = [look for window in mixed for look in window if look.fault == "zero"]
            yield _finding(trace, series, zeros, "between", len(looks))
        else:
            yield from _majority(trace, series, windows, near)


@dataclass(frozen=True, slots=True)
class _LoggedSeries:
    """What was said under one name in one place: "norm", "rate" or "loss"."""

    kind: str
    said: tuple[Logged, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """One logged value: the true one beside it, and "true", a known fault, or nothing."""

    said: Logged
    truth: float = 0.0
    fault: str = ""


def _series(trace: Trace[Event]) -> Iterator[_LoggedSeries]:
    """Yield what was logged under names that mean a norm, a rate or a training loss."""
    known = [(find_kind(one.name), one) for one in events(trace, Logged) if isfinite(one.value)]
    told = sorted((p for p in known if p[0]), key=lambda p: (p[1].channel, p[1].name))
    for _, own in groupby(told, key=lambda p: (p[0], p[1].channel, p[1].name)):
        pairs = list(own)
        yield _LoggedSeries(
            pairs[0][0], tuple(sorted((o for _, o in pairs), key=lambda o: o.clock))
        )


def find_kind(name: str) -> str:
    """Return what a name means; nothing for names of clipped, averaged or validated values."""
    words = words_of(name)
    core = " ".join(word for word in words if word not in _BESIDE)
    return next((kind for kind, names in _NAMES.items() if core in names), "")


def _around(course: Course, said: Logged) -> list[Step]:
    """
    Return the step before something was said, the one after it and the one before both.

    Of a long run, that before it alone, where it is kept; nothing where that is not known.
    """
    index = bisect_left(course.every, said.clock, key=lambda step: step.clock)
    near = course.every[max(0, index - 2) : index + 1]
    if index == 0:
        return []
    last = course.every[index - 1]
    if any(b.step != a.step + 1 or b.span > 1 for a, b in pairwise(near)) or last.span > 1:
        # All steps are counted together, those that were skipped are not.
        sure = course.alone and not course.by_hand and not any(s.skipped for s in course.every)
        return [last] if sure and said.step == last.step + 1 else []
    return [last, *(step for step in near if step is not last)]


def _look(kind: str, every: Sequence[Course], said: Logged, near: float) -> _Look:
    """Hold a value against the steps around it: any optimizer may be the one it is about."""
    looks = [
        _compare(kind, steps, said, near)
        for course in every
        if (steps := [s for s in _around(course, said) if not s.skipped])
    ]
    true = [look for look in looks if look.fault == "true"]
    alike = len(looks) == len(every) and len({look.fault for look in looks}) == 1
    return true[0] if true else looks[0] if alike else _Look(said)


def _compare(kind: str, steps: Sequence[Step], said: Logged, near: float) -> _Look:
    """Hold a value against the steps of one optimizer; the first of them was made last."""
    truths = finite(value for step in steps for value in _truths(kind, step))

    def fits(value: float) -> bool:
        """Say whether the logged value is this one, but for rounding."""
        return isfinite(value) and abs(said.value - value) <= near * abs(value) + said.rounding

    if not truths:
        return _Look(said)
    if any(fits(truth) for truth in truths):
        return _Look(said, truths[0], "true")
    if said.value == 0:
        return _Look(said, truths[0], "zero" if all(truths) else "")
    scaled = (truth * step.scale for step in steps for truth in _truths(kind, step))
    if kind != "rate" and any(map(fits, scaled)):
        return _Look(said, truths[0], "scaled")
    if kind == "norm" and any(fits(step.norm) for step in steps):
        return _Look(said, truths[0], "clipped")
    return _Look(said, truths[0], "other")


def _truths(kind: str, step: Step) -> list[float]:
    """Return what may truly be said of a step; the plainest first."""
    if kind == "norm":
        return [step.norm_before if isfinite(step.norm_before) else step.norm]
    if kind == "rate":
        return list(step.rates)
    plain = [step.loss, *step.losses]
    pairs = zip(step.losses, step.weights, strict=False)
    undivided = [loss / weight for loss, weight in pairs if weight]
    several = len(step.losses)
    means = [step.loss / several, sum(undivided), sum(undivided) / several] if several else []
    return [*plain, *undivided, *means, *(loss * several for loss in step.losses)]


def _by_window(said: Sequence[Logged], looks: Sequence[_Look]) -> list[list[_Look]]:
    """Return the looks, those between the same two steps together."""
    pairs = groupby(zip(said, looks, strict=True), key=lambda pair: pair[0].step)
    return [[look for _, look in own] for _, own in pairs]


def _is_mixed(window: Sequence[_Look]) -> bool:
    """Say whether a window has a true value, and zeros beside it."""
    return {"true", "zero"} <= {look.fault for look in window}


def _verdict(window: Sequence[_Look]) -> str:
    """Return the best that is said in a window: "true", or the fault that comes first."""
    faults = [look.fault for look in window if look.fault]
    return "true" if "true" in faults else faults[0] if faults else ""


def _first(window: Sequence[_Look], fault: str) -> _Look:
    """Return the first look of a window that has a fault."""
    return next(look for look in window if look.fault == fault)


def _majority(
    trace: Trace[Event], series: _LoggedSeries, windows: Sequence[Sequence[_Look]], near: float
) -> Iterator[Finding]:
    """Yield a finding where one fault is found in most of the windows that can be judged."""
    judged = [window for window in windows if _verdict(window)]
    if series.kind == "rate" and (apart := _changes_alone(trace, judged)):
        yield _finding(trace, series, apart, "stuck", len(judged))
        return
    for fault in ("zero", "scaled", "clipped", "other"):
        bad = [_first(window, fault) for window in judged if _verdict(window) == fault]
        if len(bad) < _FEW or 2 * len(bad) <= len(judged):
            continue
        if fault != "other":
            yield _finding(trace, series, bad, fault, len(judged))
        elif series.kind == "rate" and _is_stale(trace, bad, judged, near):
            yield _finding(trace, series, bad, "stale", len(judged))


def _is_stale(
    trace: Trace[Event], bad: Sequence[_Look], judged: Sequence[Sequence[_Look]], near: float
) -> bool:
    """Say whether one and the same rate is logged, the first or the highest, while it changes."""
    values = {look.said.value for window in judged for look in window}
    known = [
        rate
        for course in courses(trace)
        if course.steps
        for rate in (*course.steps[0].rates, max(max(s.rates, default=0.0) for s in course.steps))
    ]
    value, rounding = bad[0].said.value, bad[0].said.rounding
    far = any(abs(look.truth - value) > 0.1 * max(look.truth, value) for look in bad)
    told = any(abs(value - rate) <= near * rate + rounding for rate in known)
    return len(values) == 1 and far and told


def _changes_alone(trace: Trace[Event], judged: Sequence[Sequence[_Look]]) -> list[_Look]:
    """Return the rates that are said to have changed, where the rate in force never does."""
    every = courses(trace)
    plain = all(course.optimizer.partition("#")[0] in _PLAIN for course in every)
    constant = plain and all(len({step.rates for step in course.steps}) == 1 for course in every)
    if not constant or not judged or _verdict(judged[0]) != "true":
        return []
    apart = [_first(window, "other") for window in judged if _verdict(window) == "other"]
    pairs = [(look.said.value, look.truth) for look in apart]
    far = all(abs(said - true) > 0.1 * max(said, true) for said, true in pairs)
    return apart if far and len(apart) >= _FEW else []


_WORDS = {"norm": "gradient norm", "rate": "learning rate", "loss": "training loss"}
_FAULTS = {
    "zero": ("is zero where the truth is not", "it may be taken after zero_grad()"),
    "between": (
        "is zero where no step was made",
        "nothing was measured there; log it only where there is a step",
    ),
    "scaled": ("is still scaled by the gradient scaler", "unscale before it is taken"),
    "clipped": (
        "is the one after clipping",
        "clip_grad_norm_ returns the norm before clipping, which shows an explosion",
    ),
    "stuck": (
        "changes while the one in force does not",
        "it may be written to a copy, as `optimizer.state_dict()` returns, or to another optimizer",
    ),
    "stale": ("does not follow the rate in force", "it may be read once, or from the settings"),
}
_CAUSES = {  # of what is no norm
    ("rate", "zero"): "it may be read from another group or scheduler, or shown as a whole number",
    ("loss", "zero"): "it may be reset before it is logged, or logged before it is computed",
    ("loss", "scaled"): "log the loss as it was before scaler.scale()",
}


def _finding(
    trace: Trace[Event], series: _LoggedSeries, bad: Sequence[_Look], fault: str, among: int
) -> Finding:
    """Return the finding about a series of logged values."""
    said = bad[0].said
    told, why = _FAULTS[fault]
    why = _CAUSES.get((series.kind, fault), why)
    return Finding(
        f"the {_WORDS[series.kind]} that `{trace.subject}` logs {told}",
        place_of_log(said.name, said.channel, said.step),
        number(said.value) + f" ({len(bad)} of {among} times)",
        number(bad[0].truth),
        why=why,
        rank=Rank.NOTE if fault == "clipped" else Rank.BROKEN,
        event=said,
    )
