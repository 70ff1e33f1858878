"""Judgements of evaluations: what they report can change, and is of what was seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from struct import pack

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import at_step, integer, portion
from trainguard.core.names import EVALUATION, words_of
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Logged, Parameter, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import EVALUATIONS, NUMBERS, either, has_probe
from trainguard.invariants.loop.losses.loss import has_nonfinite_loss
from trainguard.invariants.loop.wording import courses, events, finite, middle, stretch
from trainguard.invariants.wording import number

_FEW = 3
_FAR = 3.0  # between spreads: by less, another season or another camera may differ
_SURE = 5  # printed values that agree to the last digit
_BESIDE = {"loss", "epoch", "mean", "avg", "average", "total"}


@invariant("loop", evidence=either(EVALUATIONS, NUMBERS), logs=True)
def evaluation_measures_something(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A validation loss is finite, not always zero, and changes as the model learns.

    Judges: the losses of evaluations, and what is logged under a name such as "val/loss" after
        each of them, or in a whole run without any: at 3 different steps or more, in runs whose own
        loss is finite and not zero. Broken where none is finite, all are exactly zero, or all are
        the same to the last bit although the model moved. Printed values that agree must be 5, and
        the loss must have changed by 50 (limit) times the last digit meanwhile.
    Allows: models that do not move, such as a teacher, or at a rate of zero; values that 16 bits
        can hold, which may be rounded; best values so far; zeros of fewer digits than a
        ten-thousandth of the loss needs, or a thousandth where other losses show how many digits
        are logged.
    Notes: evaluations whose loss compares two outputs of one pass, in all calls of a function that
        has a target from elsewhere in the training, 3 or more.
    Misses: other losses that vary and measure the wrong thing; metrics that are no loss.
    Why: a loop over an empty loader, or a sum that is reset too late, looks like success.
    Source: perslev/U-Time issue 43; keras-team/keras issue 1364; oke-aditya/image_similarity pull
        request 3 (an output for the target).
    """
    yield from _find_own_targets(trace)
    train = finite(step.loss for course in courses(trace) for step in course.every)
    if not any(train):
        return
    told = set()
    for series in (*_evaluation_series(trace), *_logged_series(trace)):
        fault = _fault(trace, series, train)
        if fault and fault not in told:
            told.add(fault)  # what was measured is often logged too
            yield _finding(trace, series, fault)


def _find_own_targets(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note of evaluations that hold what a model makes against what it makes."""
    for probe in events(trace, Probe):
        if probe.probe == "own target" and _FEW <= probe.measured == probe.reference:
            yield note(
                f"evaluations of `{trace.subject}` compare the model with itself",
                f"{probe.label}, to which the training gives targets",
                portion(probe.measured, probe.reference, "losses")
                + " of evaluations are of two outputs of one pass",
                integer(0),
                why="perhaps an output stands where the target of the batch should stand",
                event=probe,
            )
            return


@dataclass(frozen=True, slots=True)
class _LossSeries:
    """One loss at several evaluations; the rounding of the values, and whether the model moves."""

    name: str
    values: tuple[float, ...]
    steps: tuple[int, ...]
    rounding: float
    moves: bool
    event: Evaluation | Logged
    source: str


def select_evaluations(trace: Trace[Event]) -> list[Evaluation]:
    """Return the evaluations that are no part of every window, in order."""
    return [e for e in events(trace, Evaluation) if not e.routine]


def _has_moved(trace: Trace[Event], module: str) -> bool:
    """Say whether the run moved the outermost module of an evaluation."""
    root = module.partition(".")[0]
    own = [p for p in events(trace, Parameter) if p.name.partition(".")[0] == root]
    return any(p.moved for p in own)


def _evaluation_series(trace: Trace[Event]) -> Iterator[_LossSeries]:
    """Yield the losses of the evaluations, for each module and each place in the code."""
    groups: dict[tuple[str, str], dict[int, Evaluation]] = {}
    for one in select_evaluations(trace):
        if one.measures:
            groups.setdefault((one.module, one.source), {})[one.step] = one
    for (module, source), own in groups.items():
        yield _LossSeries(
            f"the loss of {module}",
            tuple(e.loss for e in own.values()),
            tuple(own),
            0.0,
            _has_moved(trace, module),
            next(iter(own.values())),
            source,
        )


def _logged_series(trace: Trace[Event]) -> Iterator[_LossSeries]:
    """Yield what was logged as a validation loss: its first value after each evaluation."""
    judged = select_evaluations(trace)
    clocks = sorted({e.step: e.clock for e in judged}.values())
    moves = any(_has_moved(trace, e.module) for e in judged)
    groups: dict[tuple[str, str], list[Logged]] = {}
    for one in events(trace, Logged):
        if means_validation_loss(one.name):
            groups.setdefault((one.channel, one.name), []).append(one)
    for (_, name), own in groups.items():
        kept = [
            next((one for one in own if start < one.clock < end), None)
            for start, end in pairwise((*clocks, float("inf")))
        ]
        said = [one for one in kept if one is not None]
        if not judged and trace.conditions.get("ended") == "finished":
            # In a run that is over, it was no placeholder until the first evaluation; what is said
            # in every step is shown again, not measured again.
            rare = own[-1].step - own[0].step >= 2 * (len(own) - 1)
            said = own if rare and not any(one.value for one in own) else []
        if said:
            yield _LossSeries(
                f"`{name}`",
                tuple(one.value for one in said),
                tuple(one.step for one in said),
                max(one.rounding for one in said),
                moves,
                said[0],
                said[0].source,
            )


def means_validation_loss(name: str) -> bool:
    """Say whether a name is that of a validation loss, and not of its best value or a part."""
    words = set(words_of(name))
    return "loss" in words and bool(words & EVALUATION) and words <= EVALUATION | _BESIDE


def _fault(trace: Trace[Event], series: _LossSeries, train: Sequence[float]) -> str:
    """Tell what is wrong with a series: "nan", "zero", "same", or nothing."""
    values, size = series.values, middle(abs(loss) for loss in train)
    if len(set(series.steps)) < _FEW:
        return ""
    if not any(map(isfinite, values)):
        return "nan"
    if not any(values):
        return "zero" if size > max(1e-3, _least_seen(trace, series)) else ""
    same = len(set(values)) == 1 and series.moves and _steps_on(trace, series)
    return "same" if same and _surely_same(trace, series) else ""


def _steps_on(trace: Trace[Event], series: _LossSeries) -> bool:
    """Say whether a step after the first evaluation was made at a rate that is not zero."""
    later = [s for s in events(trace, Step) if s.clock > series.event.clock]
    return not later or any(any(s.rates) or not s.rates for s in later)


def _least_seen(trace: Trace[Event], series: _LossSeries) -> float:
    """Return the loss of a training beside which a validation loss may well be logged as zero."""
    shown = [
        other.rounding
        for other in events(trace, Logged)
        if isinstance(series.event, Logged)
        and other.channel == series.event.channel
        and "loss" in other.name.lower()
        and other.value
    ]
    # A zero alone does not tell to how many digits it was rounded.
    return 1e3 * min(*shown, series.rounding) if shown else 1e4 * series.rounding


def _surely_same(trace: Trace[Event], series: _LossSeries) -> bool:
    """Say whether equal values can be no work of rounding."""
    if not series.rounding:
        return not _coarse(series.values[0])
    change = max(
        abs(
            middle(s.loss for s in stretch(c.steps, 0, 1 / 3))
            - middle(s.loss for s in stretch(c.steps, 2 / 3, 1))
        )
        for c in courses(trace)
        if c.steps
    )
    far = trace.limit("evaluation_measures_something", 50.0) * series.rounding
    return len(series.values) >= _SURE and change > far


def _coarse(value: float) -> bool:
    """Say whether a value fits 16 bits, so that it may have been rounded to them."""
    if abs(value) > 1e38:  # more than a float32 holds
        return False
    return int.from_bytes(pack(">f", value), "big") & 0x1FFF == 0


_FAULTS = {
    "nan": (
        "no validation loss of `{}` is finite",
        "a finite number",
        "perhaps the mean of no batches at all",
    ),
    "zero": (
        "every validation loss of `{}` is exactly zero",
        "a loss above zero",
        "perhaps nothing is added to it, or the loader is empty",
    ),
    "same": (
        "the validation loss of `{}` never changes although the model does",
        "values that differ",
        "perhaps it is measured on another model, or once only",
    ),
}


def _finding(trace: Trace[Event], series: _LossSeries, fault: str) -> Finding:
    """Return the finding about a series."""
    summary, allowed, why = _FAULTS[fault]
    if fault == "nan" and any(map(has_nonfinite_loss, events(trace, Step))):
        why = "the training has lost the model, see loss_is_finite"
    return Finding(
        summary.format(trace.subject),
        f"{series.name}, " + at_step(series.steps[0]) + f" to step {series.steps[-1]}",
        number(series.values[0]) + f" in {len(series.values)} of {len(series.values)} evaluations",
        allowed,
        why=why,
        event=series.event,
        source=series.source,
    )


@invariant(
    "loop",
    evidence=either(
        has_probe("scale", "no evaluation had inputs of another spread"),
        has_probe("own scale", "-"),
    ),
)
def evaluation_inputs_keep_their_scale(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Evaluation inputs are normalised like the training inputs.

    Judges: the first input of evaluations with a loss of torch, where its standard deviation is
        never that of any batch of the training, by a factor of 2: whether the loss falls by 30 %
        where a copy of the model gets the same input in the scale of the training, at the two
        latest evaluations. A note where the factor is below 3 (limit), and where no loss is known
        of two evaluations whose inputs have such a deviation, or a mean that lies half of one aside
        from those of all batches of the training. And a note where the rows of the first
        evaluation, others than those of the training, are scaled by their own numbers: a mean of
        zero and a standard deviation of one in all columns, or channels, or of all numbers, near
        those of the training; or columns of a table that all go from 0 to 1.
    Allows: runs with one evaluation in the scale of the training; inputs that are better as they
        are, as far from what is known they may lie.
    Misses: other inputs than the first; windows that overlap.
    Why: a normalisation that only the training has leaves a model among numbers it has never seen.
    Source: jchen42703/kits19-cnn issue 22; yu-changqian/TorchSeg issue 33.
    """
    by_batch = any(probe.probe == "batch scale" for probe in events(trace, Probe))
    for probe in events(trace, Probe):
        if probe.probe == "own scale" and not by_batch:
            yield _make_own_scale_note(trace, probe)
        if probe.probe != "scale":
            continue
        module, own, other, before, after = probe.label.rsplit(" ", 4)
        least, most = sorted((probe.measured, probe.reference))
        far = trace.limit("evaluation_inputs_keep_their_scale", _FAR)
        told = f", {probe.reference:.3g} around {other} in training"
        if before != "-":
            told = f": loss {before}, and {after} once it is brought to the scale of the training"
        yield Finding(
            f"evaluations of `{trace.subject}` have inputs in another scale than its training",
            f"input of {module}, after " + integer(probe.step, "steps"),
            number(probe.measured, "", ".3g") + f" standard deviation around {own}{told}",
            number(probe.reference, "", ".3g") + f" around {other}, as in training",
            why="normalise what is evaluated by the same numbers as in training: subtract the same"
            " mean, and divide by the same standard deviation",
            rank=Rank.BROKEN if most >= far * least and before != "-" else Rank.NOTE,
            event=probe,
        )


_STANDARD = (
    "standardised by their own mean",
    "mean 0 and deviation 1 in each {}",
    "mean and the deviation",
)
_SCALINGS = {
    "range": ("scaled by their own range", "from 0 to 1 in each column", "least and the largest"),
    "number": (_STANDARD[0], "mean 0 and deviation 1 of all numbers", _STANDARD[2]),
}


def _make_own_scale_note(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the note about inputs that are scaled by their own numbers."""
    name, _, by = probe.label.partition(" ")
    said, what, numbers = _SCALINGS.get(by, _STANDARD)
    return Finding(
        f"inputs of evaluations of `{trace.subject}` are {said}",
        f"input of {name}",
        what.format(by or "column") + " of " + integer(probe.measured, "rows"),
        f"what the {numbers} of the training make of them",
        why=f"keep the {numbers} of the training rows, or the scaler that was fitted"
        " to them, and use them here: transform(), not fit_transform()",
        rank=Rank.NOTE,
        event=probe,
        source=probe.source,
    )


@invariant("loop", evidence=has_probe("augmented", "no loader served one set of labels twice"))
def evaluation_inputs_stay(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Every evaluation sees the same inputs, without random augmentation.

    Judges: evaluations, on the CPU, of batches as a loader serves them that goes through a data set
        in order, or of inputs by hand whose loss is one of torch's: a note where in three
        evaluations or more no row is what it was, though all that is served beside it is the same.
    Allows: targets that change with the inputs, as those of masked words, or of the shape of the
        input, as where noise is to be removed; targets that are all the same; one row that stays.
    Misses: pictures that are augmented with their masks; loaders in another order; the GPU.
    Why: two parts of one data set share its transform, and a validation that is augmented as the
        training is measures harder samples, and others each time: it picks a model by luck.
    Source: discuss.pytorch.org/t/data-transformation-for-training-and-validation-data/32507.
    """
    for probe in events(trace, Probe):
        if probe.probe == "augmented":
            yield Finding(
                f"evaluations of `{trace.subject}` are shown other inputs each time",
                f"what {probe.label} serves",
                integer(probe.measured, "rows")
                + f" in {probe.reference:.0f} evaluations, none of which is what it was",
                "the same inputs beside the same targets",
                why="its augmentation is perhaps that of the training: give the set that this line"
                " evaluates a transform of its own, without random parts",
                rank=Rank.NOTE,
                event=probe,
                source=probe.source,
            )


_SHARE = 0.05  # of a set: one batch of 20, about which means of evaluations differ anyway


@invariant("loop", evidence=has_probe("unjudged", "no evaluation came to the end of a loader"))
def evaluation_judges_the_whole_set(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An evaluation covers every sample of its set, including the last incomplete batch.

    Judges: sets that nothing is trained on, whose loaders go through them to the end once a step
        has been made: a share of 0.05 (limit) or more of the rows that drop_last left out of each
        pass. Broken where a loss of torch was made of the others by a model that takes batches of
        other sizes, and a note otherwise.
    Allows: tables of pairs, whose losses are among as many candidates as a batch has; rows that
        another pass over the same set reaches, as one in another order does.
    Misses: sets that were cut by hand; samplers of one's own, and those for several processes.
    Why: what is left out is always the same: the newest of a series, or the last class.
    Source: lss-1138/SparseTSF issue 3; Qiu et al. 2024 (TFB, on the trick to drop the last batch).
    """
    least = trace.limit("evaluation_judges_the_whole_set", _SHARE)
    for probe in events(trace, Probe):
        if probe.probe == "unjudged" and probe.measured >= least * probe.reference:
            yield Finding(
                f"evaluations of `{trace.subject}` leave out rows of their set",
                f"in each of its {probe.step} passes" if probe.step > 1 else "in its one pass",
                integer(probe.measured, "rows") + f" of {probe.reference:.0f} are never judged",
                integer(0, "rows"),
                why="drop_last=True is for training: without it the last batch is a short one",
                rank=Rank.BROKEN if probe.label else Rank.NOTE,
                event=probe,
                source=probe.source,
            )
