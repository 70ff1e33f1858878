"""Judgements of loss functions by value: targets that they take, and results that can be."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Step, Term
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FUNCTIONS, either, has_probe, some
from trainguard.invariants.loop.losses.loss import has_nonfinite_loss
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_SLACK = 1e-3  # of a probability: 16 bits round by no more
_OFTEN = 0.1  # of the calls
_SHORT = 0.01  # of the samples: a few bad recordings are what zero_infinity is for
_CHOICES = 256  # classes: a likelihood of choices among items is made with several ones a row
_UNREACHED, _SOME = 0.2, 0.05  # of the targets: a few may be noise
_SIGNS = {
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
}
_READ = 0.8  # of the steps in time, in the batch with the longest length
_CALLS, _SIZES = 8, 3  # of ctc_loss: fewer sizes may be those of a padding that never changes
_RATES = {"exp": "an exponential", "softplus": "a softplus"}
_MAYBE_RATES = {
    "abs": "an absolute value",
    "pow": "a power",
    "relu": "a ReLU",
    "sigmoid": "a sigmoid",
}
_PROBABILITIES = {"binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"}
# Their results have no lower bound, or another one than zero.
_UNBOUNDED = {"gaussian_nll_loss", "poisson_nll_loss", "nll_loss"}


def _has_reading(term: Term) -> bool:
    """Say whether it is known how a loss reads its input."""
    return term.logarithm or _is_padded_alike(term)


@invariant("loop", evidence=either(FUNCTIONS, has_probe("target sum", "-")))
def loss_targets_are_in_range(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Targets lie in the domain of their loss function and the range of the model's output.

    Judges: the smallest and the largest target of the calls looked at: 0 to 1 for binary
        cross-entropy and soft margins of several labels, above 0 for kl_div, and -1 or 1 for losses
        of pairs and signs, which take a 0 for neither. Targets of distances (mse_loss and its like)
        that the last function of the model cannot return: negative ones under a ReLU, also where it
        is added to a constant or taken off it, those beyond one under a sigmoid or tanh. A note for
        less than 20 % of them. The blank of ctc_loss. Soft targets of cross_entropy that are zeros
        and ones, most rows with several ones; a note for more than 256 classes, as of items of
        which several are chosen. Samples of ctc_loss with more labels than steps in time, one in a
        hundred or more. Smoothed labels, of three classes or more, whose rows all add up to more
        than 1.02, also by hand; a note below 0.98.
    Allows: 1e-3 (limit) beyond the range; 5 % of the targets that cannot be returned; blanks at the
        end of padded rows; soft targets that are tables of pairs.
    Misses: targets inside the range that mean something else; losses written by hand.
    Why: labels of -1 and 1 under a cross-entropy, or of 0 and 1 under a margin, train without an
        error, to an answer that is wrong.
    Source: PyTorch, CosineEmbeddingLoss, MarginRankingLoss, BCEWithLogitsLoss, CTCLoss
        (documentation: "the target index cannot be blank", "the inputs are too short to be aligned
        to the targets") and CrossEntropyLoss ("it is the user's responsibility to ensure target
        contains valid probability distributions"); yl4579/AuxiliaryASR issue 4;
        ildoonet/pytorch-randaugment issue 30 and TimDettmers/ConvE issue 55 (smoothed labels).
    """
    slack = trace.limit("loss_targets_are_in_range", _SLACK)
    for probe in events(trace, Probe):
        if probe.probe == "target sum":
            yield _make_sum_finding(trace, probe)
    for term in events(trace, Term):
        if term.beyond >= _SOME:
            yield _make_unreached_finding(trace, term)
        if term.blanks:
            yield Finding(
                f"{term.function} of `{trace.subject}` is given its blank as a target",
                f"target of shape {term.target}",
                integer(term.blanks, "calls") + " with the blank among their targets",
                integer(0, "calls"),
                why="the class with the blank's number, 0 unless blank= says otherwise, is never"
                " predicted: count labels from 1, with one more output, or give blank= a number of"
                " its own",
                event=term,
            )
        if term.several:
            yield Finding(
                f"{term.function} of `{trace.subject}` is given multi-label targets",
                f"target of shape {term.target}",
                integer(term.several, "calls") + " with several ones in most rows of their targets",
                "rows of probabilities, which add up to one",
                why="its softmax lets the classes take from each other: where several can hold at"
                " once, use binary_cross_entropy_with_logits, or divide each row by its sum",
                rank=Rank.NOTE if max(term.target, default=0) > _CHOICES else Rank.BROKEN,
                event=term,
            )
        if term.short >= _SHORT:
            yield Finding(
                f"{term.function} of `{trace.subject}` is given more labels than steps in time",
                f"input of shape {term.input}",
                percent(term.short) + " of the samples are shorter than their labels",
                "at most " + percent(_SHORT) + " of them",
                why="no alignment exists: their loss is infinite, or zero with"
                " zero_infinity=True, and nothing is learned from them; stride less over time",
                event=term,
            )
        allowed = _describe_range(term, slack)
        if allowed:
            low, high = term.range
            yield Finding(
                f"{term.function} of `{trace.subject}` is given targets that it is not defined for",
                f"target of shape {term.target}",
                f"targets from {number(low)} to {number(high)}",
                allowed,
                why="map the labels to what the function takes, or use the loss that takes them",
                event=term,
            )


def _make_sum_finding(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding of smoothed labels that are no probabilities."""
    return Finding(
        f"smoothed labels of `{trace.subject}` do not add up to one",
        f"a target of shape {probe.label} that multiplies a log_softmax",
        number(probe.measured) + " in each row",
        number(1),
        why="take from the class what all classes get: one_hot * (1 - eps) + eps / classes",
        rank=Rank.BROKEN if probe.measured > 1 else Rank.NOTE,
        event=probe,
    )


def _make_unreached_finding(trace: Trace[Event], term: Term) -> Finding:
    """Return the finding about targets that the model cannot return."""
    last = term.producer.removesuffix("Backward0").lower()
    return Finding(
        f"{term.function} of `{trace.subject}` is given targets that a {last} cannot return",
        f"input of shape {term.input}, from a {last}",
        percent(term.beyond) + " of the targets out of its reach",
        "at most " + percent(_SOME),
        why="leave the last activation out, or bring the targets into its range",
        rank=Rank.BROKEN if term.beyond >= _UNREACHED else Rank.NOTE,
        event=term,
    )


def _describe_range(term: Term, slack: float) -> str:
    """Say which targets a function takes, where it was given others."""
    if len(term.range) != 2:
        return ""
    low, high = term.range
    if term.function in _PROBABILITIES and (low < -slack or high > 1 + slack):
        return "targets from 0 to 1"
    if term.function == "kl_div" and (low < -slack or high > 1 + slack):
        return "probabilities, or log_target=True"
    if term.function in _SIGNS and low == 0:
        return "targets of minus one and one"
    return ""


@invariant("loop", evidence=FUNCTIONS)
def losses_are_possible(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Loss functions return finite values, never below the minimum that they can have.

    Judges: what torch's loss functions return while the model learns. Broken where one that cannot
        fall below zero does, kl_div in most calls; and where a tenth of the values (limit) is not
        finite although the run's own losses are, since something replaces or skips them. A note
        where fewer are.
    Allows: losses of unbounded densities, and those with weights, which may be negative.
    Misses: losses written by hand.
    Why: a divergence below zero has been given something that is no distribution; a nan that a
        guard replaces by zero is a sample that nobody learns from.
    Source: microsoft/ProDA issue 20; sebastian-hofstaetter/matchmaker issue 18.
    """
    often = trace.limit("losses_are_possible", _OFTEN)
    replaced = not any(has_nonfinite_loss(step) for step in events(trace, Step))
    for term in events(trace, Term):
        if term.evaluation or not term.calls:
            continue
        least = 0.5 * term.calls if term.function == "kl_div" else 0
        if term.negative > least and term.function not in _UNBOUNDED and not term.weighted:
            yield _make_finding(trace, term, term.negative, "below zero", Rank.BROKEN)
        elif term.nonfinite and replaced and term.reduction != "none":
            rank = Rank.BROKEN if term.nonfinite >= often * term.calls else Rank.NOTE
            yield _make_finding(trace, term, term.nonfinite, "not finite", rank)


def _make_finding(trace: Trace[Event], term: Term, found: int, what: str, rank: Rank) -> Finding:
    """Return the finding about one place."""
    below = what == "below zero"
    return Finding(
        f"{term.function} of `{trace.subject}` returns values that are {what}",
        f"input of shape {term.input}",
        portion(found, term.calls, "calls"),
        "zero or more" if below else "finite",
        why=_WHY.get(term.function, "perhaps targets outside of the range that it takes")
        if below
        else "something skips or replaces them, so that the run's losses look sound; mend what"
        " makes them: a log, root or division of 0, or a batch in which every target is ignored",
        rank=rank,
        event=term,
    )


_WHY = {
    "kl_div": "its input must be logarithms (log_softmax), its target probabilities that sum to"
    " one; see also log_target",
}


@invariant("loop", evidence=some(Term, "no loss of rates or of lengths was called", _has_reading))
def losses_read_what_they_are_given(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A Poisson loss is told whether it gets rates or logs, and CTC lengths cover the input.

    Judges: the input of poisson_nll_loss with log_input=True, as it is by default: whether it comes
        from a softplus or an exponential (broken), or from a ReLU, square, absolute value or
        sigmoid (a note), and so is a rate. The input lengths of ctc_loss, in 8 calls or more whose
        inputs have 3 different numbers of steps in time or more: whether even the longest has less
        than 80 % (limit) of them; and, as a note, whether they all are as long as the input, though
        a variable of the running functions has lengths of which the longest alone is.
    Allows: constants that a rate is multiplied by or that are added; inputs of ctc_loss that are
        padded to one size.
    Misses: rates by other functions; lengths on an accelerator; lengths that are a little off.
    Why: a model that returns rates learns their logarithms, and predicts far too little; the loss
        looks as good. Frames beyond a length are never learned from, and are read all the same.
    Source: PyTorch, PoissonNLLLoss and CTCLoss (documentation); SeanNaren/deepspeech.pytorch, whose
        get_seq_lens follows each convolution.
    """
    least = trace.limit("losses_read_what_they_are_given", _READ)
    for term in events(trace, Term):
        activation = term.producer.rstrip("0123456789").removesuffix("Backward").lower()
        if term.logarithm and activation in {**_RATES, **_MAYBE_RATES}:
            names = {**_RATES, **_MAYBE_RATES}
            yield Finding(
                f"{term.function} of `{trace.subject}` takes rates for logarithms",
                f"input of shape {term.input}, from {names[activation]}",
                "log_input=True, and an input that is never negative",
                "log_input=False, or logarithms",
                why="leave the last function out, and take exp() of the output where a rate is"
                " wanted; or give log_input=False",
                rank=Rank.BROKEN if activation in _RATES else Rank.NOTE,
                event=term,
            )
        if _is_padded_alike(term) and term.reach < least:
            yield Finding(
                f"{term.function} of `{trace.subject}` ignores the end of its inputs",
                f"input of shape {term.input}",
                "at most " + percent(term.reach) + " of the steps in time of any batch",
                "at least " + percent(least) + " in one batch of those padded to their longest",
                why="compute input_lengths from the model's output: a convolution of stride 2"
                " halves the length once",
                event=term,
            )
        if term.padded >= _CALLS and term.frames >= _SIZES:
            yield note(
                f"{term.function} of `{trace.subject}` reads the padding of its inputs",
                f"input of shape {term.input}",
                integer(term.padded, "calls") + " that read all steps in time of each sample",
                integer(0, "calls") + f" where `{term.lengths}` has other lengths",
                why=f"give `{term.lengths}` as input_lengths: blanks and labels are learned for"
                " frames that are no part of a sample",
                event=term,
            )


def _is_padded_alike(term: Term) -> bool:
    """Say whether inputs of ctc_loss are as long as the longest of each batch, as it seems."""
    return term.function == "ctc_loss" and term.calls >= _CALLS and term.frames >= _SIZES
