"""Judgements of which way a loss pushes what it is made of, and of what it leaves in place."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import courses, events
from trainguard.invariants.wording import number

_LEAST = 3  # losses that show it, all that were looked at: a single one may be another term's
_LEAST_RATIOS = 4
_LEAST_CLIPS = 2
_LEAST_LOOKS = 5  # at 0, 1, 2, 4 and 8 steps
_FALLEN = 0.98  # of what it was: it falls in all looks, and nothing holds it
_MOST_OF_CHANCE = 1 / 3  # of ten classes and no scale: 0.35; of a scale of 4 almost nothing
# By what a term is: what comes of the wrong sign, where it is, how it stands there, and should.
_TERMS = {
    "entropy": (
        "the entropy of its policy small",
        "the term with the entropy",
        "added to",
        "taken off it",
    ),
    "divergence": (
        "a divergence from the prior large",
        "the term with mu**2, exp(l) and -l",
        "taken off",
        "added to it",
    ),
    "reference": (
        "its policy differ from the one that it is compared with",
        "the term with exp(d) - d, or d**2, of log-probabilities",
        "taken off",
        "added to it",
    ),
    "distance": (
        "its distance from the targets large",
        "a loss function of torch, which is all that the loss is",
        "taken off",
        "the loss itself",
    ),
    "policy": (
        "less likely what has paid",
        "the log-probabilities, or their ratios, times what has paid",
        "likelier is worse for",
        "-log_prob * advantage, or -exp(new - old) * advantage",
    ),
}
_CAUSES = {
    "distance": "the minus sign before it may be one too many",
    "policy": "a minus may be missing, or the ratio is the old one over the new one",
}


@invariant(
    "loop",
    evidence=has_probe("term sign", "no loss had an entropy or pay of a policy, or a divergence"),
)
def terms_keep_their_sign(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss adds distances and divergences, and subtracts rewards and entropies.

    Judges: what a loss is a weighed sum of, in all of the steps looked at in which it has such a
        term, 3 or more. Entropies: those of torch.distributions and p log p by hand, beside
        log-probabilities of choices. Divergences: mu**2 + exp(l) - l of normal distributions from
        the standard one, in whatever order it is written, and of a policy from constant
        log-probabilities: exp(d) - d - 1 or d**2, of their difference d. Policies:
        log-probabilities of what was chosen, or ratios that rise or fall with such, times what a
        variable with the name of a reward, a return or an advantage has, as it is, in part, or less
        another one. Cross-entropies and squared distances of torch, where they are all that a loss
        is, of the one optimizer of a run, whose model has not loaded anything.
    Allows: inputs that learn to be misjudged; models that unlearn what they have loaded; what has
        an optimizer beside that of its judge; weights that change or learn; entropies that are made
        small without a policy, as where a model is adapted to unlabelled inputs; pay that goes with
        a cost, or has the name of one.
    Misses: divergences that torch.distributions computes; terms that go backward by themselves.
    Why: a bonus with the wrong sign makes a policy certain before it has tried anything, and a
        divergence with the wrong sign drives the codes as far from the prior as they get: the loss
        has no lower end, and looks the better for it. A policy's loss without its minus sign, or
        with exp(old - new) for exp(new - old), unlearns what pays.
    Source: Mnih et al., 2016, section 4 (arxiv.org/abs/1602.01783); Kingma and Welling, 2014,
        appendix B (arxiv.org/abs/1312.6114); natolambert/rlhf-book issue 125 (a policy's loss);
        Unakar/Logic-RL issue 58 (its divergence).
    """
    for probe in events(trace, Probe):
        shown = probe.probe == "term sign" and _LEAST <= probe.measured == probe.reference
        if probe.label == "distance" and not _learns_by_itself(trace):
            continue
        if shown and probe.label in _TERMS:
            what, at, wrong, right = _TERMS[probe.label]
            yield Finding(
                f"the loss of `{trace.subject}` makes {what}",
                at,
                f"{wrong} the loss in " + portion(probe.measured, probe.reference, "losses"),
                right,
                why=_CAUSES.get(probe.label, "the sign of this term may be the wrong one"),
                event=probe,
            )


def _learns_by_itself(trace: Trace[Event]) -> bool:
    """Say whether one optimizer alone moves a model, and nothing was loaded into it."""
    held = [p for p in events(trace, Parameter) if p.held and p.called and p.dimensions > 1]
    moved = [p for p in held if p.moved]
    return len(courses(trace)) == 1 and bool(moved) and not any(p.loaded for p in moved)


@invariant("loop", evidence=has_probe("live target", "no loss compared outputs of a module"))
def bootstrapped_targets_are_constants(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Bootstrapped targets are detached: no gradient flows through the value of the next state.

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
                f"the bootstrapped targets of `{trace.subject}` get a gradient",
                f"the target made of what `{probe.label}` returns for later inputs",
                "gets a gradient in " + portion(probe.measured, probe.reference, "losses"),
                "a constant",
                why="compute it under torch.no_grad(), or detach() it",
                event=probe,
            )


@invariant("loop", evidence=has_probe("ratio", "no ratio of probabilities was learned from twice"))
def old_probabilities_are_kept(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A policy ratio uses the old log-probabilities of the policy that chose the actions.

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
                f"the policy ratios of `{trace.subject}` are still 1 after optimizer steps",
                "exp(new - old), in steps with no new actions between",
                integer(1)
                + " for all samples in "
                + portion(probe.measured, probe.reference, "steps"),
                "another number once the policy has moved",
                why="the old log-probabilities are those of the new policy: keep them when the"
                " actions are drawn",
                event=probe,
            )


@invariant("loop", evidence=has_probe("overlap loss", "no loss divided an overlap with a mask"))
def overlaps_are_of_probabilities(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Overlap losses such as Dice and Jaccard are computed from probabilities, not raw scores.

    Judges: quotients that learn above and below the line: sums of an output of a module times a
        mask of zeros and ones, over what has sums of that output. Whether it lies below 0 or above
        1, but for 0.01, in all losses looked at that have one, 3 or more.
    Allows: whatever makes them probabilities: a sigmoid, a softmax, a clamp.
    Misses: outputs that a function changes on their way to the loss; masks that are no zeros and
        ones; squares below the line, of outputs that are no probabilities.
    Why: the loss rewards scores that are far above one in the mask and below zero outside of it,
        where it has no lower end: it may divide by nothing, and what it says is no overlap.
    Source: jakeret/tf_unet issue 15; ScrollPrize/villa pull 1644 (a loss of 1e11 where the sum
        below the line crosses zero).
    """
    for probe in events(trace, Probe):
        if probe.probe == "overlap loss" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"a loss of `{trace.subject}` measures the overlap of a mask and raw scores",
                "a quotient with sums of an output in both of its parts",
                "scores below 0 or above 1 in "
                + portion(probe.measured, probe.reference, "losses"),
                "from 0 to 1",
                why="apply sigmoid or softmax to the scores before this loss",
                event=probe,
            )


@invariant("loop", evidence=has_probe("divergence weight", "no divergence beside a distance"))
def divergences_weigh_one_sample(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The KL and reconstruction terms of a VAE are both summed over a sample's dimensions.

    Judges: losses of one distance of torch over 16 features or more and a divergence of normal
        distributions from the standard one: what each element of both is multiplied by. In all
        looks, but for those of a warmup, whether the divergence weighs exactly as many times as
        much as a sample has features, or a batch has. Broken where its codes tell less than a tenth
        of a nat in the end.
    Notes: the same where the codes still tell something; a divergence that is a mean over its
        codes, beside a distance that is a sum over features: it weighs as many times less.
    Allows: any other weight: whoever weighs a divergence has chosen one.
    Misses: distances by hand, or in two terms; divergences that torch.distributions computes.
    Why: the mean over pixels makes the distance as many times smaller, so that it pays to give the
        codes up: what is made is the mean of all samples, whatever its code.
    Source: Kingma and Welling, 2014 (arxiv.org/abs/1312.6114), equation 10; pytorch/examples,
        vae/main.py (reduction="sum" beside the sum); podgorskiy/VAE issue 1 (a mean over codes).
    """
    for probe in events(trace, Probe):
        if probe.probe != "divergence weight" or probe.step < _LEAST:
            continue
        if probe.label == "averaged":
            yield Finding(
                f"the loss of `{trace.subject}` averages its KL term, but sums its distance",
                "the divergence",
                "is a mean over " + integer(probe.measured, "codes") + " of a sample, each of which"
                " counts as many times less than a feature",
                "a sum over them, or a weight that is chosen",
                why="take the sum over the codes, and the mean over the samples: .sum(1).mean()",
                rank=Rank.NOTE,
                event=probe,
            )
        else:
            collapsed = probe.label == "collapsed"
            yield Finding(
                f"the loss of `{trace.subject}` sums its KL term, but averages its distance",
                "the divergence" + (", whose codes tell nothing any more" if collapsed else ""),
                "weighs " + integer(probe.measured, "times") + " as much as the distance",
                integer(1, "time") + ", or what is chosen for it",
                why='give the distance reduction="sum" and divide by the samples, or take the mean'
                " over the codes too",
                rank=Rank.BROKEN if collapsed else Rank.NOTE,
                event=probe,
            )


@invariant("loop", evidence=has_probe("clipped ratio", "no loss clipped a ratio of probabilities"))
def clipping_bounds_the_gain(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A PPO objective clips the ratio, and takes the smaller of the clipped and unclipped gains.

    Judges: losses that take the smaller or the larger one of a ratio times its advantage and the
        same one clipped, 2 or more that were looked at: whether that is the smaller gain, which is
        the larger loss; whether what is clipped is the ratio, and not the product; and whether the
        two are weighed before they are compared, where advantages have both signs.
    Allows: `-min(r * A, clip(r) * A)` and `max(-A * r, -A * clip(r))`, which are the same; a second
        bound for large losses.
    Misses: choices that are written with `where`; ratios of sequences by other names of functions.
    Why: the larger gain has no upper end: the policy moves as far from the one that acted as its
        optimizer lets it, and the clip only ever holds what it should let go.
    Source: Schulman et al., 2017, equation 7 (arxiv.org/abs/1707.06347);
        alexis-jacq/Pytorch-DPPO issue 3 (the product is clipped); takuseno/ppo issue 3 (compared
        before they are weighed); openai/baselines issue 1156 (which of the two a loss takes).
    """
    for probe in events(trace, Probe):
        if probe.probe == "clipped ratio" and probe.measured >= _LEAST_CLIPS:
            yield Finding(
                f"a loss of `{trace.subject}` clips a ratio, and does not bound the gain",
                f"a choice between two gains: {probe.label}",
                portion(probe.measured, probe.reference, "losses"),
                integer(0, "losses"),
                why="torch.min(ratio * advantage, ratio.clamp(low, high) * advantage), with a minus"
                " before it in the loss",
                event=probe,
            )


@invariant("loop", evidence=has_probe("bounded scores", "no scores were cosines of classes"))
def scores_can_reach_their_targets(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Cosine logits are scaled enough for their cross-entropy to become small.

    Judges: cross-entropies of cosines, of samples and of a parameter for each class, times a
        constant: the least that such a loss can be, which must be below a third (limit) of what a
        model has that knows nothing. The same of cosines of two outputs, as of pairs in a batch,
        times a constant of 0.6 or less, whatever is masked or added to them.
    Allows: a scale that is large enough, or learned; similarities of samples with each other times
        more than that, whose temperature is a choice.
    Misses: cosines by other ways than a product of two tables with rows of a norm of one; biases.
    Why: cosines lie between -1 and 1: a softmax of them stays nearly flat, so that the loss cannot
        become small, and samples that are right already are pushed as hard as those that are not.
    Source: Wang et al., 2017, NormFace, proposition 2 (arxiv.org/abs/1704.06369);
        ExplainableML/czsl issue 30; wy1iu/sphereface issue 43; Radford et al., 2021, figure 3
        (arxiv.org/abs/2103.00020), for pairs.
    """
    most = trace.limit("scores_can_reach_their_targets", _MOST_OF_CHANCE)
    for probe in events(trace, Probe):
        if probe.probe == "bounded scores" and probe.measured > most * probe.reference:
            of_outputs = probe.label.endswith("outputs")
            yield Finding(
                f"the loss of `{trace.subject}` cannot become small, since its scores are cosines",
                f"cosines of {probe.step} classes, times {probe.label}",
                number(probe.measured) + " is the least that this loss can be",
                number(most * probe.reference) + f" or less, of {probe.reference:.3g} by chance",
                why="divide the cosines by a temperature (0.05 to 0.5 are usual), do not multiply"
                if of_outputs
                else "multiply the cosines by a scale (16 to 64 are usual), or by a learned one",
                event=probe,
            )


@invariant("loop", evidence=has_probe("free weight", "no loss learned the weight of a term"))
def loss_weights_are_held(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Learned loss weights are regularised, so that they cannot shrink to zero.

    Judges: weights of terms that are made of one parameter, on which nothing else in the loss
        depends, in 5 looks or more: whether they are smaller at each look than at the one before,
        and in the end below 0.98 (limit) of what they were.
    Allows: weights with a term of their own, such as a logarithm, or whose sum a softmax holds;
        weights that are learned the other way, as of an adversary.
    Misses: parameters that a weight decay alone holds; weights that are given the same parameter as
        something else.
    Why: the cheapest way to a small loss is to multiply it by nothing: the loss falls, and less and
        less is learned.
    Source: Kendall et al., 2018, equation 7 (arxiv.org/abs/1705.07115); rotmanfinhub/deep-macrofin
        issue 35 (a logarithm that is added "to avoid" a weight of zero).
    """
    most = trace.limit("loss_weights_are_held", _FALLEN)
    for probe in events(trace, Probe):
        fallen = probe.measured < most * probe.reference
        if probe.probe == "free weight" and fallen and probe.step >= _LEAST_LOOKS:
            yield Finding(
                f"a loss of `{trace.subject}` learns to shrink the weight of a term to zero",
                f"a weight made of a parameter of shape {probe.label or '()'}",
                number(probe.measured) + f" at the last of {probe.step} looks, and falling in all",
                number(most * probe.reference) + " or more, or something that holds it",
                why="add what grows as the weight falls: exp(-s) * loss + s",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("running sum", "no loss had a running sum over samples"),
        has_probe("early risk", "-"),
    ),
)
def running_sums_follow_an_order(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loss with running sums over the batch, as in Cox regression, gets sorted samples.

    Judges: losses that compare the scores of a batch, as a module returned them, with the logarithm
        of running sums of their exponentials, as Cox's partial likelihood does: whether any
        variable with a number for each sample rises or falls in their order; in all of 3 looks or
        more none does. And whether a variable that is called a time, or is what the scores were
        sorted by where those of an event alone are counted, rises in the order in which they are
        summed up, the one in which the scores were put on their way included.
    Allows: samples that an order or places in a variable put in one; batches of which no such
        number is known; sums over times that fall, as over a rising order that is turned round.
    Misses: an order of something else; sums over several scores of a sample.
    Why: the sum stands for all who are still at risk: over samples as they happen to come, it
        stands for nobody, and who lives longer is hardly learned.
    Source: UK-Digital-Heart-Project/4Dsurvival pull 13 (the order in each batch is taken away) and
        issue 2 (why there must be one).
    """
    for probe in events(trace, Probe):
        if probe.probe == "running sum" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"a loss of `{trace.subject}` takes running sums over unsorted samples",
                "the logarithm of a running sum of the scores of a batch",
                portion(probe.measured, probe.reference, "losses")
                + " with no number of the samples that rises or falls",
                "samples in the order of their times",
                why="sort each batch by time, the longest first, before this loss:"
                " order = time.argsort(descending=True), for scores, times and events",
                event=probe,
            )
        elif probe.probe == "early risk" and _LEAST <= probe.measured == probe.reference:
            yield Finding(
                f"a loss of `{trace.subject}` sums over shorter times, not over those at risk",
                f"the logarithm of a running sum of scores, in the order of `{probe.label}`",
                portion(probe.measured, probe.reference, "losses") + " sum from the shortest time",
                integer(0, "losses") + ": who has a longer time is still at risk",
                why="sort with descending=True, or turn the scores round before the sum and the sum"
                " after it: torch.logcumsumexp(scores.flip(0), 0).flip(0)",
                event=probe,
            )
