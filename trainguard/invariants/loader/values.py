"""Judgements of what batches hold: numbers, their size, and the labels that go with them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import isfinite, sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer, portion
from trainguard.events.base import Event
from trainguard.events.loader import Field
from trainguard.events.trace import Trace
from trainguard.invariants.loader.wording import EpochPass, Split, each_case
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number


@invariant("loader")
def values_are_finite(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No value is nan or infinite, or outside the range declared for its field.

    Judges: every floating-point element of the first epoch, and some of later ones; declared
        ranges, on the first epoch. Missing numbers among labels are a note: a loss may leave them
        out.
    Allows: minus infinity in a mask that is added to attention scores; rounding at the ends.
    Misses: corrupted samples with plausible values; what later epochs draw.
    Why: one damaged file in a thousand makes the loss nan once in an epoch, at no fixed step.
    Source: Breck et al., Data Validation for Machine Learning (MLSys 2019).
    """
    for field in events(trace, Field):
        if field.bad and field.role != "mask":
            yield Finding(
                f"a field of `{trace.subject}` holds values that are not finite",
                f"field {field.field!r} of {field.split!r}, first at {field.at}",
                portion(field.bad, field.count, "values"),
                integer(0, "values"),
                why="perhaps a sample is damaged, or scaled by a range or deviation of zero",
                rank=Rank.NOTE if field.role == "label" else Rank.BROKEN,
                event=field,
            )
        elif field.outside and field.role != "label":
            yield _outside(trace, field, "a field of `{}` leaves its declared range")


@invariant("loader", needs=("labels",))
def labels_are_in_range(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Labels lie in the range declared for them.

    Judges: each label of the first epoch whose field has a declared domain.
    Allows: -100, which PyTorch's losses leave out.
    Misses: labels of which no range is declared; classes that are exchanged.
    Why: classes counted from one, or a new class in the data, index past the last weight: on a GPU
        an assertion without a place, in an embedding lookup another row.
    Source: PyTorch's device-side assertion `t >= 0 && t < n_classes`, which names no sample.
    """
    for field in events(trace, Field):
        if field.outside and field.role == "label":
            yield _outside(trace, field, "labels of `{}` lie outside their declared range")


def _outside(trace: Trace[Event], field: Field, summary: str) -> Finding:
    """Say which value of a field lies outside its declared range."""
    low, high = (trace.promises.get(f"{end}:{field.field}") for end in ("low", "high"))
    named = field.field.rpartition(".")[2]
    low = trace.promises.get(f"low:{named}") if low is None else low
    high = trace.promises.get(f"high:{named}") if high is None else high
    ends = [end for end in (low, high) if isinstance(end, int | float)]
    nearest = min(ends, key=lambda end: abs(end - field.first), default=None)
    return Finding(
        summary.format(trace.subject),
        f"field {field.field!r} of {field.split!r}, first at {field.at}",
        number(field.first)
        + f" ({field.outside} values, {number(field.low)} to {number(field.high)})",
        Measure(f"{low} to {high}", nearest),
        event=field,
    )


@invariant("loader", needs=("modalities",))
def modalities_share_a_scale(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The modalities of a batch have values on comparable scales.

    Judges: the root mean square of the values that are not zero, of each declared modality of
        floating-point numbers in the first epoch, against the smallest of them.
    Allows: a factor of 100 (limit: a factor); fields of whole-number types, which are looked up or
        scaled by the model.
    Misses: scales that differ inside one field; what the model or the loss scales itself.
    Why: raw scanner units and integer codes turned into floats beside values of one: the squared
        error of the largest is millions of times that of the smallest, and alone is learned.
    Source: scikit-learn's documentation, preprocessing: a feature of larger variance dominates the
        others.
    """
    wanted = trace.promises.get("modalities")
    allowed = trace.limit("modalities_share_a_scale", 100.0)
    sizes: dict[tuple[int, str], list[tuple[float, Field]]] = defaultdict(list)
    for field in events(trace, Field):
        size = _size(field)
        if isinstance(wanted, tuple) and _is_named(field.field, wanted) and size > 0:
            sizes[field.case, field.split].append((size, field))
    for sized in sizes.values():
        least, smallest = min(sized, key=lambda pair: pair[0])
        for size, field in sized:
            if size > allowed * least:
                yield _scale_finding(trace, field, size, smallest, least, allowed)


def _scale_finding(
    trace: Trace[Event], field: Field, size: float, smallest: Field, least: float, allowed: float
) -> Finding:
    """Say how much larger one modality is than the smallest."""
    return Finding(
        f"the modalities of `{trace.subject}` are of very different sizes",
        f"{field.field!r} against {smallest.field!r}, split {field.split!r}",
        number(size / least, "times") + f" as large ({number(size)} against {number(least)})",
        number(allowed, "times"),
        why="its values are whole numbers: perhaps category codes stored as floats"
        if field.whole and field.high > 1
        else "it is perhaps not normalised",
        event=field,
    )


def _size(field: Field) -> float:
    """Return the root mean square of the values of a field that are not zero."""
    if "float" not in field.dtype or not isfinite(field.mean) or field.count == field.zeros:
        return 0.0
    square = field.mean**2 + field.deviation**2
    return sqrt(square * field.count / (field.count - field.zeros))


def _is_named(path: str, names: tuple[object, ...]) -> bool:
    """Say whether a field is one of those named, by its path or the last word of it."""
    return path in names or path.rpartition(".")[2] in names


@invariant("loader")
def labels_follow_inputs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The same input has the same label in each epoch and each split.

    Judges: inputs that come once in each of two epochs, and their labels; and, as a note, inputs
        that two splits share. Labels are what is declared, fields called label or target, and the
        second of a pair where it is one whole number or word for each sample.
    Allows: equal inputs with different labels inside an epoch; 2 % of the inputs (limit: a share),
        and as many samples as are dropped. Labels that are not declared make notes.
    Misses: inputs that are augmented, so that none comes twice; labels wrong in the same way each
        time; what changes after the first 64 batches, or the first tenth, of the second epoch.
    Why: data shuffled by one permutation and labels by another, and nothing but the base rates can
        be learned.
    Source: Borda/kaggle_image-classify pull request 12; data sets that call randperm once for x and
        once more for y.
    """
    declared = bool(trace.promises.get("labels"))
    allowed = trace.limit("labels_follow_inputs", 0.02)
    for splits in each_case(trace):
        for split in splits:
            yield from _between_epochs(split, allowed, declared)
        for place, one in enumerate(splits):
            for other in splits[place + 1 :]:
                yield from _between_splits(one, other)


def _between_epochs(split: Split, allowed: float, declared: bool) -> Iterator[Finding]:
    """Yield a finding where inputs have other labels in another epoch."""
    if len(split.passes) < 2:
        return
    was, now = (_labels_by_input(one) for one in split.passes[:2])
    common = was.keys() & now.keys()
    differ = [print_ for print_ in common if was[print_] != now[print_]]
    dropped = max(b.size for b in split.first.batches) if split.first.epoch.drops else 0
    if common and len(differ) > max(1, allowed * len(common), dropped):
        place = _first_place(split.passes[1], set(differ))
        yield Finding(
            f"inputs of `{split.trace.subject}` change their labels",
            f"split {split.name!r}, epoch 1, {place}, against epoch 0",
            percent(len(differ) / len(common)) + f" of {len(common)} inputs",
            percent(allowed) + " of them",
            why="inputs and labels are perhaps shuffled apart",
            rank=Rank.BROKEN if declared else Rank.NOTE,
            event=split.passes[1].epoch,
        )


def _between_splits(one: Split, other: Split) -> Iterator[Finding]:
    """Yield a note where inputs have another label in another split."""
    was, now = _labels_by_input(one.first), _labels_by_input(other.first)
    common = was.keys() & now.keys()
    differ = [print_ for print_ in common if was[print_] != now[print_]]
    repeated = sum(times > 1 for times in one.first.counts.values())
    if len(differ) > 1 and len(differ) > 0.5 * len(common) and not repeated:
        place = _first_place(other.first, set(differ))
        yield note(
            f"the same inputs have other labels in another split of `{one.trace.subject}`",
            f"{place} of {other.name!r}, against {one.name!r}",
            portion(len(differ), len(common)) + " shared inputs",
            integer(0, "inputs"),
            why="perhaps each split numbers the classes by itself",
            event=other.first.epoch,
        )


def _labels_by_input(one: EpochPass) -> dict[int, int]:
    """Return {input: label} for the inputs that come once in an epoch."""
    counted: Counter[int] = one.counts
    return {
        print_: label
        for batch in one.batches
        if len(batch.prints) == len(batch.labels)
        for print_, label in zip(batch.prints, batch.labels, strict=True)
        if counted[print_] == 1
    }


def _first_place(one: EpochPass, differ: set[int]) -> str:
    """Return where the first of some inputs is served."""
    return next(
        f"batch {batch.index}, sample {row}"
        for batch in one.batches
        for row, print_ in enumerate(batch.prints)
        if print_ in differ
    )
