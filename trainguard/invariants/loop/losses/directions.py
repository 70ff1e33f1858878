"""Judgements of which way a loss pushes what it is made of, and of what it leaves in place."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 3  # losses that show it, all that were looked at: a single one may be another term's
_LEAST_RATIOS = 4


@invariant(
    "loop", evidence=has_probe("term sign", "no loss had an entropy of a policy or a divergence")
)
def terms_keep_their_sign(trace: Trace[Event]) -> Iterator[Finding]:
    """
    An entropy bonus is taken off a policy's loss, and a divergence from a prior is added.

    Judges: what a loss is a weighed sum of, in all of the steps looked at in which it has such a
        term, 3 or more. Entropies: those of torch.distributions and p log p by hand, beside
        log-probabilities of choices. Divergences: mu**2 + exp(l) - l of normal distributions from
        the standard one, in whatever order it is written.
    Allows: weights that change or learn; entropies that are made small without a policy, as where a
        model is adapted to unlabelled inputs.
    Misses: divergences that torch.distributions computes; terms that go backward by themselves.
    Why: a bonus with the wrong sign makes a policy certain before it has tried anything, and a
        divergence with the wrong sign drives the codes as far from the prior as they get: the loss
        has no lower end, and looks the better for it.
    Source: Mnih et al., 2016, section 4 (arxiv.org/abs/1602.01783); Kingma and Welling, 2014,
        appendix B (arxiv.org/abs/1312.6114).
    """
    for probe in events(trace, Probe):
        if probe.probe == "term sign" and _LEAST <= probe.measured == probe.reference:
            entropy = probe.label == "entropy"
            what = "the entropy of its policy" if entropy else "a divergence from the prior"
            yield Finding(
                f"the loss of `{trace.subject}` makes {what} {'small' if entropy else 'large'}",
                "the term with the entropy" if entropy else "the term with mu**2, exp(l) and -l",
                ("added to the loss in " if entropy else "taken off the loss in ")
                + portion(probe.measured, probe.reference, "losses"),
                "taken off it" if entropy else "added to it",
                why="the sign of this term may be the wrong one",
                event=probe,
            )


@invariant("loop", evidence=has_probe("live target", "no loss compared outputs of a module"))
def bootstrapped_targets_are_constants(trace: Trace[Event]) -> Iterator[Finding]:
    """
    What a model is to come closer to, made of its own later output, does not learn meanwhile.

    Judges: squared, absolute and Huber distances between an output of a module and a target that is
        something known plus a share, 0.5 to 0.9999, of what the same module returns in another
        pass: whether that pass gets a gradient, in all of the steps looked at with outputs of a
        module in a distance, 3 or more.
    Allows: targets of a copy, of a detached pass, or without gradients; outputs that are compared
        with each other with nothing added, as in contrastive losses; residuals of equations.
    Misses: both states in one pass; shares for each sample.
    Why: with gradients through both sides the value of the next state moves toward that of this one
        as well: information flows backward in time, and values converge far more slowly, to others.
    Source: Sutton and Barto, Reinforcement Learning, sections 9.3 and 11.5 (semi-gradients); Baird,
        1995.
    """
    for probe in events(trace, Probe):
        if probe.probe == "live target" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"the targets of `{trace.subject}` learn as well",
                f"the target made of what `{probe.label}` returns for later inputs",
                "gets a gradient in " + portion(probe.measured, probe.reference, "losses"),
                "a constant",
                why="compute it under torch.no_grad(), or detach() it",
                event=probe,
            )


@invariant("loop", evidence=has_probe("ratio", "no ratio of probabilities was learned from twice"))
def old_probabilities_are_kept(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A ratio of probabilities is against those of the policy that acted.

    Judges: exp(new - old) with the log-probability of a choice and a constant, in steps that follow
        another one with such a ratio while nothing was drawn from a distribution between: 4 of them
        or more, and all are exactly 1 for all samples.
    Allows: a single step for each draw, whose ratio is 1; any ratio that is not 1 for one sample.
    Misses: policies whose choices something else draws; quotients of probabilities.
    Why: once a step is made, the policy is another one than the one that acted. Where the ratio is
        still 1 its constant was made from the new policy: nothing is ever clipped, and steps go as
        far as they like.
    Source: Schulman et al., 2017 (arxiv.org/abs/1707.06347); Huang et al., The 37 Implementation
        Details of Proximal Policy Optimization, 2022.
    """
    for probe in events(trace, Probe):
        if probe.probe == "ratio" and _LEAST_RATIOS <= probe.measured == probe.reference:
            yield Finding(
                f"the ratios of probabilities of `{trace.subject}` are 1 after steps were made",
                "exp(new - old), in steps with no new actions between",
                integer(1)
                + " for all samples in "
                + portion(probe.measured, probe.reference, "steps"),
                "another number once the policy has moved",
                why="the old log-probabilities are those of the new policy: keep them when the"
                " actions are drawn",
                event=probe,
            )
