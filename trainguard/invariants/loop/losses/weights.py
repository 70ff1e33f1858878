"""Judgements of the weights that a loss gives to classes, to samples and to choices."""

from collections.abc import Iterator, Sequence

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe, some
from trainguard.invariants.loop.models.counterfactuals import answers_to
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_POWERS = (1.0, 0.5)  # of how often a class comes, by which weights are made
_EXACT, _CLOSE = 1.02, 1.2  # times: what counts of a part of the data are off, of 2 classes or more
_UNLIKE = 1.5  # times that weights of another order are off, at least
_LEAST = 8  # samples of the rarest class
_LEAST_LOSSES = 3  # with a log-probability that is weighed
_LEAST_ENDS = 4  # rows of batches in which an episode ended
_SURE_ENDS, _SURE_SHARE = 4, 0.25  # of them: a limit of time comes with rewards that others have

WEIGHTS = some(BaselineFit, "no loss was given weights of classes", lambda fit: fit.weights)


@invariant("loop", evidence=WEIGHTS)
def class_weights_fit_the_classes(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Class weights are in the order of the classes, and do not favour the frequent ones.

    Judges: weights of cross_entropy and nll_loss, and a pos_weight, that are one over how often the
        classes came, or over its root, but in another order: as one would get by sorting the
        counts; and weights that are how often they came, against the rest for a pos_weight. A note
        for round numbers.
    Allows: 20 % (limit: 1.2) for what is counted on another part of the data, 2 % where there are
        two classes; whatever other weights.
    Misses: weights made by other rules; classes of which fewer than 8 samples came.
    Why: the frequent class is made more frequent still, and the rare one that the weights were
        made for is never predicted; nothing fails, since the number of weights is right.
    Source: pos_weight is the number of negatives over that of positives (PyTorch,
        BCEWithLogitsLoss).
    """
    close = trace.limit("class_weights_fit_the_classes", _CLOSE)
    for fit in events(trace, BaselineFit):
        if len(fit.weights) != len(fit.counts) or min(fit.counts, default=0) < _LEAST:
            continue
        order = _find_order(fit.weights, fit.counts, _EXACT if len(fit.weights) == 2 else close)
        if order:
            yield _make_finding(trace, fit, order)


def _find_order(weights: Sequence[float], counts: Sequence[float], close: float) -> str:
    """Say in which wrong order weights are, if they are weights of these counts at all."""
    if min(weights) <= 0:
        return ""
    for power in _POWERS:
        parts = [count**power for count in counts]
        right = [w * part for w, part in zip(weights, parts, strict=True)]
        turned = [w / part for w, part in zip(weights, parts, strict=True)]
        matched = zip(sorted(weights), sorted(parts, reverse=True), strict=True)
        if max(right) < _UNLIKE * min(right):
            return ""
        if max(turned) <= close * min(turned):
            return "as often as the classes come"
        if _ratio([w * part for w, part in matched]) <= close:
            return "in another order"
    return ""


def _ratio(values: Sequence[float]) -> float:
    """Return the largest of some values over the smallest."""
    return max(values) / min(values)


def _make_finding(trace: Trace[Event], fit: BaselineFit, order: str) -> Finding:
    """Return the finding about the weights of one place."""
    largest = max(range(len(fit.weights)), key=lambda i: fit.weights[i])
    rarest = min(range(len(fit.counts)), key=lambda i: fit.counts[i])
    share = fit.counts[largest] / sum(fit.counts)
    is_round = all(round(weight, 1) == round(weight, 4) for weight in fit.weights)
    single = fit.function == "binary_cross_entropy_with_logits"
    several, odds = single and len(fit.weights) > 2, fit.counts[largest] / min(fit.counts)
    return Finding(
        f"the weights of classes of `{trace.subject}` are {order}"
        if order == "in another order"
        else f"the class weights of `{trace.subject}` are largest for the most frequent classes",
        f"{fit.function}, whose rarest class is {rarest}",
        "weight "
        + number(fit.weights[largest])
        + (
            f" for class {largest}, whose odds are {number(odds, 'times')} those of the rarest"
            if several
            else f" for class {largest}, which {share:.0%} of the targets are"
        ),
        "the largest weight for the rarest class",
        why="pos_weight is the number of negatives over that of positives"
        if single
        else "counts sorted by size are not in the order of the classes; count with"
        " torch.bincount(labels, minlength=classes), and weigh by one over that",
        rank=Rank.NOTE if is_round else Rank.BROKEN,
        event=fit,
    )


_LOOKS = 4  # the last one at step 32 or later: no warm-up of a few steps
_STEPS = 2  # in which weights, or a focal factor, met one number


@invariant("loop", evidence=has_probe("averaged", "no loss was handed to backward"))
def sample_weights_weigh_samples(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Sample weights multiply the loss of each sample, not the mean of the batch.

    Judges: losses that are made of one number for the batch (a loss function of torch, a mean of
        errors or of log-probabilities by hand) times constants, as many as there are samples or
        elements in it, that are only summed up after that; in 2 steps or more. Broken where the
        constants come with the samples: there are as many in another batch, or they change from
        step to step by half of their spread or more. A note of others, and of a focal factor
        (1 - exp(-loss)) ** gamma that is one number for the batch.
    Allows: masks that leave out what the mean leaves out already; weights that are all the same;
        a weight for each of several losses.
    Misses: weights that learn; graphs that are compiled; torch 2.4, which does not tell shapes.
    Why: mean(w * L) of one number L is L * mean(w): no sample weighs more than another, whatever
        its weight. Padding counts, rare classes stay rare, and nothing fails.
    Source: rlcode/per issue 3 (a prioritised replay); foamliu/InsightFace-v2 pull request 39.
    """
    for probe in events(trace, Probe):
        if probe.probe == "averaged" and probe.measured >= _STEPS:
            yield Finding(
                f"the weights of samples of `{trace.subject}` multiply the mean of their losses",
                "in the graph of the loss",
                integer(probe.reference, "weights") + " times one number",
                "a loss for each weight",
                why='reduction="none" is missing, or a mean() comes too early: mean(w * L) of one'
                " number L is L * mean(w)",
                rank=Rank.BROKEN if probe.label else Rank.NOTE,
                event=probe,
            )
        if probe.probe == "focal" and probe.measured >= _STEPS:
            yield Finding(
                f"the focal loss of `{trace.subject}` focuses on no sample",
                "(1 - exp(-L)) ** gamma * L",
                integer(1, "factor") + " for the whole batch",
                "a factor for each sample",
                why='reduction="none" is missing: easy samples are told apart from hard ones before'
                " the mean",
                rank=Rank.NOTE,
                event=probe,
            )


@invariant("loop", evidence=has_probe("weight", "no log-probability of a choice was in a loss"))
def advantages_are_constants(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Advantages are detached, so that the policy loss does not train the critic.

    Judges: losses in which the log-probability of a given choice is multiplied by something that
        gets a gradient, and that a squared or absolute error in the same loss fits to its targets:
        in all of the steps looked at in which there was such a log-probability, 3 or more. Only in
        runs that draw samples of torch.distributions.
    Allows: weights without gradients; weights that nothing else fits, such as learned ones.
    Misses: terms that go backward one after the other; actions that something else draws.
    Why: the policy is to follow the critic's values, and these are to follow the returns. Without
        detach() the policy's term moves the values to where likely actions seem better.
    Source: Farama-Foundation/Gymnasium issue 1494; astariul/encode-attend-navigate-pytorch issue 2.
    """
    for probe in events(trace, Probe):
        if probe.probe == "weight" and _LEAST_LOSSES <= probe.measured == probe.reference:
            name = f"`{probe.label}`" if probe.label else "the weight of a log-probability"
            yield Finding(
                f"the policy's loss of `{trace.subject}` trains the values that it is weighted by",
                f"{name}, by which log-probabilities are multiplied",
                "gets a gradient from that, besides that of the error that fits it, in "
                + portion(probe.measured, probe.reference, "losses"),
                "a constant",
                why=f"detach {name} in the policy's term; the error of the values keeps its graph",
                event=probe,
            )


@invariant("loop", evidence=has_probe("returns reversed", "no episode was weighed by its returns"))
def returns_follow_their_steps(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The log-probability of each step is weighted by the return of that same step.

    Judges: constants that log-probabilities are multiplied by, one for each of 8 steps or more, as
        they are made of what the script calls rewards: whether in half of the episodes each is a
        discount times the one before and the reward that far from the end, up to a scale. Of
        several episodes in a row the last one or the first is known. What is called a value or a
        baseline may have been taken off, where there are 24 steps or more. And whether they are
        returns in neither order, where their log-probabilities were computed step by step.
    Allows: returns in the order of the steps; advantages.
    Misses: what has a baseline by another name; a discount of 1 where all rewards are equal and
        the order is reversed.
    Why: returns are made from the last step backwards. Unless they are turned round, the first
        action is blamed for what the last one did.
    Source: Sutton and Barto, Reinforcement Learning, section 13.3; pytorch/examples, reinforce.py,
        which fills a deque from its left.
    """
    for probe in events(trace, Probe):
        if probe.probe == "returns reversed" and 2 * probe.measured > probe.reference:
            yield Finding(
                f"the returns of `{trace.subject}` are in reverse",
                "what weighs the steps of an episode",
                portion(probe.measured, probe.reference, "episodes") + " begin with the last step",
                "none",
                why="turn them round where they are made: insert(0, ...), or reverse()",
                event=probe,
            )
        if probe.probe == "returns mixed" and 2 * probe.measured > probe.reference:
            yield Finding(
                f"the returns of `{trace.subject}` are mixed up",
                "what weighs the steps of an episode",
                portion(probe.measured, probe.reference, "episodes")
                + " have their returns in an order that is not that of the steps",
                "none",
                why="perhaps a reverse() stands inside of the loop that makes them",
                event=probe,
            )


@invariant(
    "loop",
    evidence=either(
        has_probe("ends passed", "no returns over several episodes were seen"),
        has_probe("ends bootstrapped", "-"),
    ),
)
def returns_stop_at_ends(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Returns, advantages and value targets do not reach past the end of an episode.

    Judges: returns and advantages over several episodes in a row, as they are made of what the
        script calls rewards and, for advantages, values: whether the one of an episode's last step
        is made of the first of the next episode too, as anywhere else, or of it while the value of
        the next state is cut. With 4 ends or more (6 for advantages), which the script calls done,
        terminal, or the opposite of masks. Targets of values, too, that are a reward and a share of
        what a network returns for what follows, in all rows of a batch that go on: whether they are
        so in every row that ends an episode, 4 or more. Broken where a quarter of these rows, 4 or
        more, are called terminal or have rewards that no others have.
    Notes: such targets where ends may be those of a limit of time alone, or where nothing says what
        ends, and one table of zeros and ones, which is no action, stands beside the rewards.
    Allows: returns that end with their episodes, or go on from a value there; rewards called
        intrinsic or bonus, which are meant to outlive episodes; returns of both kinds in one run;
        rows that are called truncated, cut or timeout.
    Misses: rollouts in lists of tuples; returns that are no tables of their own; targets of one
        row, of distributions, or of changed rewards; ends that are only called mask; accelerators;
        targets of which terminal_states_end tells already.
    Why: the last action is praised or blamed for an episode that it had no part in: what ends an
        episode badly is worth as much as a new start.
    Source: Sutton and Barto, Reinforcement Learning, section 3.4; Huang et al., The 37
        Implementation Details of PPO, detail 4; DLR-RM/stable-baselines3, RolloutBuffer;
        navneet-nmk/pytorch-rl issue 2 (targets of Q-values).
    """
    yield from _find_bootstraps(trace)
    for probe in events(trace, Probe):
        if probe.probe == "ends passed" and 2 * probe.measured > probe.reference:
            yield Finding(
                f"the returns of `{trace.subject}` reach past the ends of episodes",
                f"`{probe.label}`, what the steps of several episodes are credited with",
                "the next episode counts too, at " + integer(probe.step or 0, "ends of episodes"),
                "nothing after an end",
                why="where a step was the last of its episode, drop what follows: "
                "`running = rewards[t] + gamma * (1 - dones[t]) * running`",
                event=probe,
            )


def _find_bootstraps(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding of targets that count what follows an end, unless a step told it already."""
    if any(each.measured > each.reference for each in answers_to(trace, "terminal states edited")):
        return
    for probe in events(trace, Probe):
        shown = probe.probe == "ends bootstrapped" and probe.measured == probe.reference
        if shown and probe.measured >= _LEAST_ENDS:
            surely = (probe.step or 0) >= max(_SURE_ENDS, _SURE_SHARE * probe.measured)
            yield Finding(
                f"the targets of `{trace.subject}` reach past the ends of episodes",
                f"rows in which `{probe.label}` says that an episode has ended",
                portion(probe.measured, probe.reference, "rows")
                + " have a target of their reward and a share of what follows, as all others have",
                "the reward alone: nothing follows an end",
                why="multiply what follows by what goes on: "
                "`reward + gamma * (1 - done) * next_value`; what a limit of time has cut may go"
                " on, and is to be kept apart",
                rank=Rank.BROKEN if surely else Rank.NOTE,
                event=probe,
            )
            return


@invariant(
    "loop",
    evidence=either(
        has_probe("zero term", "no term of a loss had weights for its samples"),
        has_probe("rounded weight", "-"),
    ),
)
def terms_weigh_something(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The weights of a loss term, such as advantages, are not zero throughout training.

    Judges: constants of 8 elements or more that a term of the loss is multiplied by, before it is
        summed up: whether all of them are zero in each of 4 looks or more, at steps 1, 8, 16, 32,
        64, 128, 256 and 512. Broken where they weigh log-probabilities of what was chosen, and the
        script has rewards that differ; a note of other terms. And a single weight that is zero at
        each of some 50 looks up to the end, 4 or more, where a statement of the script rounds a
        fraction into a variable that is zero at all of them: `beta = epoch // epochs`. That is a
        note where the loop does not go round that often: a longer run may come to one.
    Allows: a weight that is a constant of the script; zeros in some of the looks, as a warm-up has
        them; rewards that are all the same; masks inside of a model.
    Misses: weights that are zeros by rounding alone; terms that go through anything but sums.
    Why: advantages that are normalised over an axis of one element are zero, whatever was earned:
        what is left of the loss, an entropy or a penalty, falls, and the policy stays random.
    Source: pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html, over a last axis
        of size 1; openai/spinningup, utils/mpi_tools.py (over all processes).
    """
    for probe in events(trace, Probe):
        if probe.probe.startswith("rounded weight") and _LOOKS <= probe.measured == probe.reference:
            yield Finding(
                f"a term of the loss of `{trace.subject}` is multiplied by a weight of zero",
                f"`{probe.label}`, up to step {probe.step}",
                integer(0, "times the term") + ", at each of " + integer(probe.measured, "looks"),
                "a weight that does not stay zero",
                why="`//` and int() of a fraction below one are zero: divide by `/`",
                rank=Rank.NOTE if probe.probe.endswith("perhaps") else Rank.BROKEN,
                event=probe,
            )
        elif probe.probe == "zero term" and _LOOKS <= probe.measured == probe.reference:
            yield Finding(
                f"a term of the loss of `{trace.subject}` is multiplied by zeros",
                "what weighs "
                + ("the choices of a policy" if probe.label else "the samples in it"),
                integer(probe.step or 0, "weights")
                + ", all of them zero, at each of "
                + integer(probe.measured, "looks"),
                "some that are not zero",
                why="perhaps they were normalised over an axis of one element, (x - x.mean()) of a"
                " single number, or a comparison holds for none of them",
                rank=Rank.BROKEN if probe.label else Rank.NOTE,
                event=probe,
            )
