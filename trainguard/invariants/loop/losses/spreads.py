"""Judgements of likelihoods and quantiles by hand: which spread, and which end, they learn."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_LEAST = 3  # looks
_MISTAKEN = (0.5, 2.0)  # what comes of a half that stands at one of the two parts alone
_NEAR = 0.01
_FAR = 0.1  # from one: a small weight of an entropy moves it by less


@invariant(
    "loop",
    evidence=either(
        has_probe("likelihood", "no error was divided by a learned variance"),
        has_probe("deviation", "-"),
    ),
)
def variances_are_those_of_the_errors(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A Gaussian likelihood is maximal where its variance equals that of the errors.

    Judges: losses with squares (or sizes) of errors over something that is learned, as it is or as
        an exponential, beside its logarithm: the variance, in squares of the error, for which such
        a loss is least; in 3 looks or more, all alike. Broken where there is none, since both parts
        fall together, and where it is one half, or two. And what gaussian_nll_loss is given as a
        variance: broken where the same output of a module is the deviation of a Normal elsewhere.
    Notes: another one, which somebody may have chosen, by 0.1 (limit) or more; what is given as a
        variance by the name of a deviation.
    Allows: both parts times one number, or one number for each sample; other forms of it, with a
        variance, a deviation, a precision or their logarithms.
    Misses: variances that are summed up or bounded in between; deviations by other names that only
        intervals are made of.
    Why: a half that is left out says that a model is as sure again as it is, or half as sure: its
        intervals are wrong everywhere, and nothing else is.
    Source: Kendall and Gal, 2017, equation 8 (arxiv.org/abs/1703.04977); unit8co/darts pull 1162 (a
        deviation where a variance belongs).
    """
    far = trace.limit("variances_are_those_of_the_errors", _FAR)
    for probe in events(trace, Probe):
        if probe.probe == "deviation":
            yield _given_a_deviation(trace, probe)
        is_other = abs(probe.measured - 1) >= far
        if probe.probe == "likelihood" and probe.step >= _LEAST and is_other:
            mistaken = any(abs(probe.measured / each - 1) <= _NEAR for each in _MISTAKEN)
            none = probe.measured <= 0
            yield Finding(
                f"a likelihood in `{trace.subject}` "
                + ("has no largest value" if none else "is largest for another variance"),
                "squares of errors over what is learned, beside its logarithm",
                "a variance that falls or rises for ever"
                if none
                else number(probe.measured) + " times the square of the errors",
                integer(1, "time") + ", as 0.5 * s + 0.5 * error**2 * exp(-s)",
                why="check the signs and the factors of both terms: for a normal distribution they"
                " are 0.5 * log_var + 0.5 * error**2 / var",
                rank=Rank.BROKEN if mistaken or none else Rank.NOTE,
                event=probe,
            )


def _given_a_deviation(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a deviation that is given as a variance."""
    is_both = probe.measured > 0
    return Finding(
        f"a Gaussian likelihood of `{trace.subject}` takes a deviation for a variance",
        "the variance that gaussian_nll_loss is given" + (f", {probe.label}" if is_both else ""),
        integer(probe.measured, "times") + " it is the deviation of a Normal, as it is"
        if is_both
        else integer(1, "as the exponent") + f" of `{probe.label}`",
        integer(0, "times, or as its root") if is_both else integer(2, "for a variance"),
        why="it learns to be the square of what it is used for, and intervals made of it are too"
        " narrow or too wide: give the loss sigma**2",
        rank=Rank.BROKEN if is_both else Rank.NOTE,
        event=probe,
        source=probe.source,
    )


@invariant("loop", evidence=has_probe("quantile side", "no list of quantiles was learned"))
def quantiles_are_on_their_side(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Each output of a quantile regression learns its own quantile q, not 1 - q.

    Judges: outputs of modules, on the CPU, whose gradient has two values in each column, as that of
        a pinball loss: where one pulls up with q and the other down with 1 - q, it learns the
        quantile q. Whether these are 1 minus the numbers of a variable that is called quantiles,
        qs, taus or the like, all of those that are known, two or more beside the middle.
    Allows: lists in any order; columns whose numbers are those of the list.
    Misses: single quantiles, which may be the other end on purpose; smooth losses, as that of
        Huber; gradients that are weighed sample by sample; columns that are changed after the call.
    Why: the loss falls, and the intervals are as wide as they should be, but upside down: what is
        called the lower bound is the upper one, and covers nothing.
    Source: ufal/npfl139 issue 17 (the error with the other sign); scikit-learn/scikit-learn issue
        8087.
    """
    for probe in events(trace, Probe):
        if probe.probe == "quantile side":
            name, _, place = probe.label.rpartition(" ")
            yield Finding(
                f"columns of `{trace.subject}` learn the opposite of their quantiles",
                f"column {place} of an output with as many as `{name}`",
                number(probe.measured, "", ".3g")
                + f" is the quantile that it learns; {probe.step} columns are known, all alike",
                number(probe.reference, "", ".3g") + f", as `{name}` has it",
                why="the error of a pinball loss is target - prediction: with"
                " e = target - prediction it is max(q * e, (q - 1) * e); exchange the two",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("log determinant", "no module returned a log-determinant"))
def log_determinants_count(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A normalising flow returns its true log-determinant, and the loss falls as it rises.

    Judges: the first 4 modules that map rows (N, K), K of 64 or less, to as many numbers, and
        return a number for each row beside them, or one for all: whether it differs from row to
        row, and from look to look, as log |det J| does, by the derivatives of some rows of a copy
        in evaluation mode, in 3 looks or more at steps 1, 2, 4, 16 and 64. Where the code calls it
        a log-determinant, it has to be that; where it is, with either sign, the gradients of the
        loss have to pull for a larger log |det J|.
    Allows: constants, as of scaled data; means over the K numbers; gradients that pull rows apart;
        numbers of other names.
    Misses: modules that return one thing, or three; sums of what layers return that a method adds
        up; accelerators.
    Why: with the other sign, or with a layer that is left out, a density does not add up to one:
        the loss falls for ever as the flow contracts, and what is drawn of it is nothing like data.
    Source: Dinh et al. 2017 (arXiv 1605.08803), equation 2: log p(x) = log p(z) + log |det dz/dx|.
    """
    for probe in events(trace, Probe):
        if probe.probe != "log determinant" or probe.measured < _LEAST:
            continue
        turned = probe.label == "sign"
        yield Finding(
            f"the loss of `{trace.subject}` rises with the log-determinant of its flow"
            if turned
            else f"the log-determinant that a flow of `{trace.subject}` returns is wrong",
            "log |det J| by the derivatives of 8 rows",
            integer(probe.measured, "looks")
            + (
                " in which the loss rises with it" if turned else " in which its differences differ"
            ),
            integer(0, "looks"),
            why="subtract it: loss = -(log_prob(z) + log_det).mean() where it is that of x to z"
            if turned
            else "add up what each layer returns (log_det = log_det + part), over all columns that"
            " the layer scales",
            event=probe,
        )


@invariant(
    "loop",
    evidence=either(
        has_probe("mixture axis", "no weights of a mixture were learned"),
        has_probe("gate axis", "-"),
    ),
)
def mixture_weights_sum_to_one(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Mixture weights sum to one along the axis of the mixture components.

    Judges: `logsumexp(log_softmax(w) + log_prob)` in the graph of a loss, at steps 0, 1, 2, 4 and
        8: whether the two run along one axis, and it is not the softmax itself that is added, in 3
        looks or more that all say so. And a softmax of (N, K) in a model that returns N rows for N
        rows, as of a gate, which is chosen, or multiplied and summed, along the axis of K: whether
        it is over the N samples instead, in 3 looks or more, all of them.
    Allows: sums over several axes; weights whose axes are moved in between; those that pool all N.
    Misses: mixtures of torch.distributions, which get this right; gates of as many parts as there
        are samples, or whose weights are viewed or exchanged before they are used.
    Why: a softmax over the batch, or over time, makes the samples compete for each part, and a
        mixture of any weight: its likelihood is none.
    Source: ctallec/world-models issue 10 (log_softmax along the axis of the batch).
    """
    for probe in events(trace, Probe):
        if probe.probe == "mixture axis" and _LEAST <= probe.measured == probe.reference:
            own, _, used = probe.label.partition(" and ")
            yield Finding(
                f"mixture weights of `{trace.subject}` are normalised along the wrong axis",
                "log_softmax of weights below logsumexp",
                integer(int(own or 0)) + " is the axis of the weights",
                integer(int(used or 0)) + ", the axis that logsumexp sums over",
                why=f"normalise them along the axis of the parts: log_softmax(weights, dim={used})",
                event=probe,
            )
        if probe.probe == "gate axis" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"weights of `{trace.subject}` sum to one over the samples, not over their parts",
                f"a softmax of {probe.label}, along axis 0",
                portion(probe.measured, probe.reference, "steps")
                + " choose or sum along axis 1 what was normalised along axis 0",
                "one axis for both",
                why="softmax(dim=-1): else the samples of a batch compete for each part, and what"
                " is made of one depends on the others",
                event=probe,
                source=probe.source,
            )
        if probe.probe == "mixture probabilities" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"weights of a mixture of `{trace.subject}` are added as if they were logarithms",
                "softmax of weights below logsumexp",
                portion(probe.measured, probe.reference, "steps") + " with weights that sum to more"
                " than one: those of exp(softmax(weights))",
                "weights that sum to one, of which the logarithms are added",
                why="take their logarithms: log_softmax(weights) in place of softmax(weights)",
                event=probe,
                source=probe.source,
            )
