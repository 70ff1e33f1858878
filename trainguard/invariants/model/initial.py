"""Judgements of a model before it is trained: its outputs, its loss, parts that are the same."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import isfinite, log, sqrt
from statistics import fmean, stdev

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer, portion
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, sizes, worst
from trainguard.invariants.wording import number, of

_EXPECTED = 0.2
_GUESS_FACTOR, _GUESS_EXTRA = 1.5, 0.5
_ACTIVE, _FEW_UNITS = 0.02, 256


@invariant("model", probe="initial")
def outputs_are_finite(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    Outputs and loss of a fresh model are finite for the declared inputs.

    Judges: every floating-point output and the loss, from several seeds in training mode and once
        in evaluation mode, at the largest and the smallest sizes.
    Allows: an infinity from which nothing flows back: a mask puts -inf on what cannot be chosen,
        and all gradients are finite.
    Misses: inputs that drawing does not meet; the logarithm of a zero that a ReLU made, where no
        loss is declared; overflow in a lower precision, which low_precision_agrees has.
    Why: a division by a norm or a standard deviation of zero, a softmax over nothing, the root or
        logarithm of what an untrained layer gives.
    Source: pytorch/pytorch issue 41508 (a fully masked row).
    """
    for seen in worst(of(trace, "output"), lambda seen: seen.count):
        if seen.count:
            yield Finding(
                f"an output of `{trace.subject}` is not finite",
                f"{format_place(seen)}, {seen.at}, {sizes(seen)}",
                portion(seen.count, seen.of, "elements"),
                portion(0, seen.of, "elements"),
                why=f"the first came from {seen.detail}" if seen.detail else "",
                event=seen,
            )
            return
    lost = next((seen for seen in of(trace, "loss") if not isfinite(seen.measured)), None)
    if lost is not None:
        yield Finding(
            f"the loss of `{trace.subject}` is not finite before training",
            f"{lost.at}, {sizes(lost)}",
            number(lost.measured),
            "finite",
            why="the outputs are finite, so it is the loss that is not",
            event=lost,
        )


@invariant("model", probe="initial")
def initial_loss_is_expected(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The initial loss is that of an uninformed guess, such as ln(classes).

    Judges: the mean loss of four fresh models against the promise `initial_loss=`, or ln(classes)
        under `classes=`. Without a promise, each mean cross-entropy that is taken over classes: it
        is a note where a model that starts from random weights is far worse than a guess.
    Allows: 20 % of the expectation (limit: that share), and three standard errors of the mean;
        unpromised 1.5 ln(classes) + 0.5.
    Misses: a loss that is right by chance, such as wrong parts that cancel; regression and
        likelihoods about which nothing is promised.
    Why: a head that starts far off spends its first thousand steps on unlearning its own scale,
        or overflows; a loss far below a guess has seen the target.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): verify the loss at initialisation.
    """
    expected = trace.promise("initial_loss")
    if expected is None:
        yield from _worse_than_a_guess(trace)
        return
    share = trace.limit("initial_loss_is_expected", _EXPECTED)
    losses = [s for s in of(trace, "loss") if s.case == 0 and isfinite(s.measured)]
    if not losses:
        return
    mean = fmean(seen.measured for seen in losses)
    error = stdev([s.measured for s in losses]) / sqrt(len(losses)) if len(losses) > 1 else 0.0
    allowed = share * abs(expected) + 3 * error
    if abs(mean - expected) > allowed:
        yield Finding(
            f"the loss of `{trace.subject}` before training is not the expected one",
            f"mean of {len(losses)} seeds, {sizes(losses[0])}",
            number(mean),
            number(expected) + f" +- {number(allowed)}",
            why="the head may start too confident: a weight of a smaller scale, or a bias at the"
            " statistics of the data"
            if mean > expected
            else "the target may be among the inputs, or the loss be averaged over too much",
            event=losses[0],
        )


def _worse_than_a_guess(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a note for each cross-entropy that is far above the logarithm of its classes."""
    places: dict[str, list[Pass]] = {}
    for seen in of(trace, "entropy"):
        if seen.case == 0:
            places.setdefault(seen.place, []).append(seen)
    for place, taken in places.items():
        mean, guess = fmean(seen.measured for seen in taken), log(max(taken[0].of, 2))
        most = _GUESS_FACTOR * guess + _GUESS_EXTRA
        if isfinite(mean) and mean > most:
            yield note(
                f"the loss of `{trace.subject}` before training is far above that of a guess",
                f"{place}, mean of {len(taken)} seeds",
                number(mean),
                number(guess) + f" for a guess, {number(most)} at most",
                why="the logits start too large: embeddings of unit variance that are tied to the"
                " head, or a head of too large a scale",
                event=taken[0],
            )


@invariant("model", probe="initial", needs=("initial_range",))
def initial_outputs_are_in_range(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The outputs of a fresh model lie in their promised range.

    Judges: the lowest and the highest element of each output named by `initial_range=`, from four
        seeds in training mode.
    Allows: nothing beyond the promised range.
    Misses: outputs that are all at one place inside it, which components_are_distinct may have.
    Why: scales, means and logits of a mixture that start far from the data cost the likelihood
        thousands of nats at the first step, and saturate where the gradient is zero.
    Source: Karpathy, "A Recipe for Training Neural Networks"
        (karpathy.github.io/2019/04/25/recipe): initialise the final layer well.
    """
    ranges = {
        name.removeprefix("range:"): bounds
        for name, bounds in trace.promises.items()
        if name.startswith("range:") and isinstance(bounds, tuple)
    }
    for glob, (low, high) in ranges.items():
        own = [
            seen
            for seen in of(trace, "output")
            if seen.at.startswith("seed") and fnmatchcase(seen.place, glob)
        ]
        yield from _outside(trace, own, float(str(low)), float(str(high)))


def _outside(trace: Trace[Pass], own: list[Pass], low: float, high: float) -> Iterator[Finding]:
    """Yield a finding for the output that leaves its range farthest."""
    for seen in worst(own, lambda seen: max(low - seen.measured, seen.reference - high)):
        beyond = seen.measured if low - seen.measured > seen.reference - high else seen.reference
        if max(low - seen.measured, seen.reference - high) > 0:
            yield Finding(
                f"an output of `{trace.subject}` is out of its range before training",
                f"{format_place(seen)}, {seen.at}, {sizes(seen)}",
                number(beyond),
                number(low) + f" to {number(high)}",
                why="the weight of the head may be too large, or filled so that its output"
                " follows the size of its input; a small weight and a bias set the start",
                event=seen,
            )


@invariant("model", probe="backward")
def components_are_distinct(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    The components and units of a fresh model become distinct, and its ReLUs are not dead.

    Judges: after three small steps on the declared loss, the components named by `components=`,
        pair by pair (without a loss: before any step); every weight of whose rows each has a
        twin; layers that stand at several places of a list; and the share of elements that each
        ReLU lets through.
    Allows: rows that start alike and part, as those of a head filled with zeros do. Where a
        weight has several groups of twins it is a note, and so is one layer at several places,
        since some share it on purpose, and a ReLU that lets less than 2 % of at least 256 elements
        through.
    Misses: a few twins among rows that differ, where no components are declared; weights of a
        model without a loss; activations other than ReLU.
    Why: a mixture whose rows are filled with one constant is one component for ever: rows that
        are the same get the same gradient.
    Source: Goodfellow et al., Deep Learning, section 8.4: initial parameters must break the
        symmetry (deeplearningbook.org).
    """
    yield from _twins(trace)
    for seen in of(trace, "components"):
        if seen.count:
            yield Finding(
                f"components of `{trace.subject}` are the same",
                f"{format_place(seen)}, {seen.at}",
                portion(seen.count, seen.of, "components") + " have a twin",
                portion(0, seen.of, "components") + " have a twin",
                why="they start the same and get the same gradient, so no training parts them: a"
                " random weight, or biases spread over the data, would",
                event=seen,
            )
    yield from _find_repeated_layers(trace)
    yield from _silent(trace)


def _twins(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for each weight all of whose rows are one, or a few, and stay so."""
    for seen in of(trace, "twins"):
        several = seen.count > 1
        yield Finding(
            f"every row of a weight in `{trace.subject}` has a twin that it never leaves"
            if several
            else f"all rows of a weight in `{trace.subject}` are the same and stay so",
            format_place(seen),
            integer(seen.count) + f" different rows of {seen.of}",
            integer(seen.of) + f" different rows of {seen.of}",
            why="they are filled alike and got the same gradient in every step: what they compute"
            " is computed many times over",
            rank=Rank.NOTE if several else Rank.BROKEN,
            event=seen,
        )


def _find_repeated_layers(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a note for each layer that a list holds more than once."""
    for seen in of(trace, "repeated"):
        yield note(
            f"`{trace.subject}` holds one layer at several places of a list",
            seen.place,
            integer(seen.count, "places"),
            Measure("1 place", 1, "places"),
            why="[layer] * n repeats one layer; [make_layer() for _ in range(n)] makes several",
            event=seen,
        )


def _silent(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a note for a ReLU in the first case that lets next to nothing through."""
    for seen in of(trace, "activity"):
        if seen.case == 0 and seen.of >= _FEW_UNITS and seen.count < _ACTIVE * seen.of:
            yield note(
                f"a ReLU of `{trace.subject}` is silent before training",
                f"{format_place(seen)}, {sizes(seen)}",
                portion(seen.count, seen.of, "elements") + " above zero",
                "at least " + portion(int(_ACTIVE * seen.of), seen.of, "elements") + " above zero",
                why="a bias or an input far below zero leaves its units dead from the start",
                event=seen,
            )
