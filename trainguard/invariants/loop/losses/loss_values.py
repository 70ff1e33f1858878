"""Judgements of loss functions by value: targets that they take, and results that can be."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Step, Term
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FUNCTIONS
from trainguard.invariants.loop.losses.loss import has_nonfinite_loss
from trainguard.invariants.loop.wording import events, percent
from trainguard.invariants.wording import number

_SLACK = 1e-3  # of a probability: 16 bits round by no more
_OFTEN = 0.1  # of the calls
_UNREACHED, _SOME = 0.2, 0.05  # of the targets: a few may be noise
_SIGNS = {
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
}
_PROBABILITIES = {"binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"}
# Their results have no lower bound, or another one than zero.
_UNBOUNDED = {"gaussian_nll_loss", "poisson_nll_loss", "nll_loss"}


@invariant("loop", evidence=FUNCTIONS)
def loss_targets_are_in_range(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss function is given targets that it is defined for.

    Judges: the smallest and the largest target of the calls looked at: 0 to 1 for binary
        cross-entropy and soft margins of several labels, above 0 for kl_div, and -1 or 1 for losses
        of pairs and signs, which take a 0 for neither. Targets of distances (mse_loss and its like)
        that the last function of the model cannot return: negative ones under a ReLU, those beyond
        one under a sigmoid or tanh. A note for less than 20 % of them. The blank of ctc_loss, in
        the calls looked at.
    Allows: 1e-3 (limit) beyond the range; 5 % of the targets that cannot be returned; blanks at the
        end of padded rows.
    Misses: targets inside the range that mean something else; losses written by hand.
    Why: labels of -1 and 1 under a cross-entropy, or of 0 and 1 under a margin, train without an
        error, to an answer that is wrong.
    Source: PyTorch, CosineEmbeddingLoss, MarginRankingLoss, BCEWithLogitsLoss and CTCLoss
        (documentation: "the target index cannot be blank"); yl4579/AuxiliaryASR issue 4.
    """
    slack = trace.limit("loss_targets_are_in_range", _SLACK)
    for term in events(trace, Term):
        if term.beyond >= _SOME:
            yield _make_unreached_finding(trace, term)
        if term.blanks:
            yield Finding(
                f"{term.function} of `{trace.subject}` is given its blank as a target",
                f"target of shape {term.target}",
                integer(term.blanks, "calls") + " with the blank among their targets",
                integer(0, "calls"),
                why="what has the number of the blank, 0 unless blank= says otherwise, can never be"
                " told: count the labels from 1, with one output more, or give blank= a number of"
                " its own",
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
    A loss function returns what it can return: no distance below zero, and a number.

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
