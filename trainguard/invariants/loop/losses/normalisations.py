"""Judgement of what losses of classes are given: logits, logarithms or probabilities."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.loop import Term
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FUNCTIONS, either, has_probe
from trainguard.invariants.loop.wording import events, in_line

_FEW = 3  # calls: once or twice may be an accident of a first batch


@invariant("loop", evidence=either(FUNCTIONS, has_probe("picked", "-")))
def logits_are_not_normalised_twice(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Cross-entropy losses get logits, and `nll_loss` and `kl_div` get log-probabilities.

    Judges: cross_entropy and binary_cross_entropy_with_logits whose input comes out of a softmax, a
        sigmoid, a ReLU or a tanh, or is made of distributions in every one of 3 calls or more;
        nll_loss and kl_div, too; logarithms or soft targets that sum to one along another axis than
        that of the classes, in every call; nll_loss of values above zero, or rows of more than one.
        Losses by hand that pick one number of a softmax for each place along its axis, or weigh
        them by what sums to one along another; a softmax of one, or a sigmoid of one, in all looks.
    Allows: log_softmax before cross_entropy, which changes nothing; a tanh that is scaled after;
        square tables.
    Misses: a normalisation that something else follows; other losses written by hand.
    Why: a softmax of a softmax is nearly flat: the loss cannot fall far, and its gradient fades.
    Source: Lightning-Universe/lightning-bolts issue 654; ariecattan/SciCo issue 2.
    """
    for term in events(trace, Term):
        measured, allowed = _describe_normalisation(term)
        if measured:
            yield Finding(
                f"{term.function} of `{trace.subject}` is given {measured}",
                f"input of shape {term.input}" if term.input else "",
                f"{measured} in " + portion(term.calls, term.calls, "calls"),
                allowed,
                why=_AXES if measured == _ELSEWHERE else _tell_remedy(term),
                event=term,
            )
    told = any(_describe_normalisation(term)[0] for term in events(trace, Term))
    for probe in events(trace, Probe):
        if probe.probe == "twice" and _FEW <= probe.measured == probe.reference and not told:
            yield Finding(
                f"the loss of `{trace.subject}` takes the {probe.label} of a {probe.label}",
                "in the graph of the loss",
                "one right after the other in " + portion(probe.measured, probe.reference, "steps"),
                "logits",
                why=_WHY["cross_entropy"].replace("softmax", probe.label),
                event=probe,
            )
        if probe.probe == "picked" and _FEW <= probe.measured == probe.reference:
            yield Finding(
                f"the loss of `{trace.subject}` picks classes of {_ELSEWHERE}",
                "softmax over " + probe.label,
                _ELSEWHERE + " in " + portion(probe.measured, probe.reference, "steps"),
                "that sum to one over the classes",
                why=_AXES,
                event=probe,
            )


_ELSEWHERE = "probabilities that sum to one along another axis than that of the classes"
_MAKERS = {
    "SoftmaxBackward0": "the output of a softmax",
    "SigmoidBackward0": "the output of a sigmoid",
    "ReluBackward0": "the output of a ReLU",
    "TanhBackward0": "the output of a tanh",
}
_AXES = "the dim of a softmax is the axis of the classes: the last, or 1 of (N, C, ...)"
_WHY = {
    "cross_entropy": "it takes the softmax itself; leave the activation before it out",
    "binary_cross_entropy_with_logits": "it takes the sigmoid itself; leave the activation before"
    " it out",
    "nll_loss": "log_softmax is missing, or use cross_entropy",
    "kl_div": "its input is what log_softmax returns, unlike its target",
}


def _describe_normalisation(term: Term) -> tuple[str, str]:
    """Tell what a term is given instead of what it takes, and what that is; or nothing."""
    always = term.calls >= _FEW and term.distributions == term.calls
    if _FEW <= term.calls == term.crossed:
        return _ELSEWHERE, "that sum to one over the classes"
    if term.function in ("cross_entropy", "binary_cross_entropy_with_logits"):
        classes = term.input[1] if len(term.input) > 1 else 0
        probabilities = always and classes > 1 and term.function == "cross_entropy"
        made = _MAKERS.get(term.producer, "probabilities" if probabilities else "")
        return made, "logits"
    if term.function == "nll_loss" and 0 < term.calls == term.positive:
        made = "probabilities" if term.distributions == term.calls else "values above zero"
        return made, "logarithms of probabilities"
    if term.function == "nll_loss" and _FEW <= term.calls == term.heavy and not always:
        return "probabilities that sum to more than one", "logarithms of probabilities"
    if term.function in ("kl_div", "nll_loss"):  # a softmax goes along whichever axis
        made = "probabilities" if always else _MAKERS.get(term.producer, "")
        return made, "logarithms of probabilities"
    return "", ""


def _tell_remedy(term: Term) -> str:
    """Return what to do about a term, and the line of what is to be left out, if it is known."""
    why = _WHY.get(term.function, "")
    line = in_line(term.activation) if term.producer in _MAKERS else ""
    return f"{why}{line}" if "leave" in why else why
