"""Judgements of what a model has learned, against a prediction that knows no input."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite, sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit, Skill
from trainguard.events.loop import Evaluation, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FITS, SKILLS, either, has_probe
from trainguard.invariants.loop.losses.causes import (
    ALONE,
    before_loader,
    find_causes,
    find_one_targets,
    tell_of_outputs,
)
from trainguard.invariants.loop.wording import (
    count,
    courses,
    events,
    in_line,
    lines_of_origin,
    percent,
    rates_rise,
)
from trainguard.invariants.wording import number

_LEAST_CALLS = 48  # as many steps as the shortest runs that were seen to learn took to do so
BEATEN = 0.98  # of the constant's loss: nothing that has learned ended above it in the corpus
_WORSE = 2.0  # times the constant's loss: no noise of a rate or of a batch explains that
_ABSURD = 10.0  # times chance: 23 nats for ten classes, where a whole run cannot leave them
_FALLS = 0.97  # of the loss a quarter or two before: such a run has only not been long enough
_LONG = 96  # calls, twice the fewest: at the beginning losses slow down, which says nothing
_PACE = 1 / 3  # of such a fall that is in its second half: one that goes on has a half there
_FALLS_FAR = 0.9  # the same of a loss that is far above the constant's, and noisier
_LEARNABLE = 0.3  # of held-out variance; noise explains less than 0.1 of 256 examples
_LEAST_ENTROPY = 0.05  # below it the targets are all but constant
_LEARNED = 0.7  # of the constant's loss
_QUIET = 0.1  # of the constant's loss, in the quarter of the stretches where it is lowest
_LEAST_ROWS = 64
_BY_CLASS = 5  # deviations of the mean recall: classes differ in what a broken model says of them
_DEVIATIONS = 5.0  # below what naming the rarest class gets: by chance once in 3 million
_SEVERAL = 3  # classes
_LEAST_ALIKE = 24  # calls; a last layer that begins at zero takes one step to leave it
_LEAST_SHARE = 0.25
_ENTROPIES = ("cross_entropy", "nll_loss", "binary_cross_entropy")


@invariant("loop", evidence=FITS)
def loss_beats_constant_prediction(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A trained model beats a constant prediction that ignores the input.

    Judges: the loss functions of torch that compare with classes or numbers, and the same by hand
        (`((model(x) - y) ** 2).mean()`), called 48 times or more: the last quarter of the losses,
        against those that always predicting the average of the targets seen before has in the same
        calls. Broken where the loss is that of one place alone and a small regression on 256 of the
        same inputs, or of those of an evaluation where these explain nothing, explains 30 % of
        targets that it was not shown, unless it still falls and there are fewer than 96 calls, or
        where the loss ends at twice that of the constant. Else a note.
    Allows: 0.98 (limit) of the constant's loss; a loss that still falls by 3 % from the second
        quarter of the run to the last, by 10 % where it is far above the constant's, unless it is
        a cross-entropy of ten times as much; a loss of outliers, that is below 0.7 of the
        constant's where there are few; rates that still rise; targets that hardly vary; terms
        beside others, unless they compare with the input itself and never beat it, also where
        they fall ever more slowly (a note).
    Misses: other losses by hand, and several terms; runs with rollouts; a model that has learned
        less than it could; of several trainings one after another, all but the last, which has
        48 calls or more of its own.
    Why: a model that predicts the mean looks like a loss curve that has converged.
    Source: Karpathy, A Recipe for Training Neural Networks, 2019 ("input-independent baseline");
        pytorch/pytorch issue 16045.
    """
    beaten = trace.limit("loss_beats_constant_prediction", BEATEN)
    if any(passes.routine for passes in events(trace, Evaluation)) or rates_rise(trace):
        return
    for whole in events(trace, BaselineFit):
        fit = _since_latest_training(trace, whole)
        if not is_conclusive(fit):
            continue
        ratio, before = share_of_constant(fit, 0.75, 1), share_of_constant(fit, 0.25, 0.5)
        falls = ratio < (_FALLS if ratio < _WORSE else _FALLS_FAR) * before
        # It nears the constant's from above, and stays.
        if fit.reconstructs and fit.only < ALONE and fit.calls >= _LONG:
            falls = falls and share_of_constant(fit, 0.5, 0.75) - ratio > _PACE * (before - ratio)
        absurd = ratio >= _ABSURD and fit.function.startswith(_ENTROPIES)
        if ratio < beaten or (falls and not absurd) or _is_hidden_by_outliers(fit):
            continue
        alone = fit.only >= ALONE
        slow = fit.calls < _LONG and ratio < before  # it may only not have been long enough
        taught = max(fit.learnable, fit.evaluated if fit.evaluated > 0 else 0.0) >= _LEARNABLE
        sure = alone and ((taught and not slow) or ratio >= _WORSE)
        best = min(share_of_constant(fit, part / 4, (part + 1) / 4) for part in range(4))
        if alone or (fit.reconstructs and best >= beaten):
            yield _make_finding(trace, fit, beaten, Rank.BROKEN if sure else Rank.NOTE)


def _since_latest_training(trace: Trace[Event], fit: BaselineFit) -> BaselineFit:
    """Return what is of the latest optimizer, where all others had stopped before it began."""
    found = courses(trace)
    earlier = [course.every[-1].clock for course in found[:-1]]
    if not earlier or max(earlier) > found[-1].every[0].clock:
        return fit
    share = count(found[-1].every) / sum(count(course.every) for course in found)
    kept = max(round(share * len(fit.losses)), 1)
    losses, constants = fit.losses[-kept:], fit.constants[-kept:]
    return replace(fit, calls=round(share * fit.calls), losses=losses, constants=constants)


def _make_finding(trace: Trace[Event], fit: BaselineFit, beaten: float, rank: Rank) -> Finding:
    """Return the finding about one place."""
    loss, constant = _mean(fit.losses, 0.75, 1), _mean(fit.constants, 0.75, 1)
    worse = loss >= _WORSE * constant
    taught = fit.learnable >= _LEARNABLE
    return Finding(
        f"the model of `{trace.subject}` ends {'worse than' if worse else 'no better than'} a"
        " constant that ignores the input",
        f"{fit.function}, the last quarter of {fit.calls} calls",
        "loss " + number(loss),
        "below "
        + number(beaten * constant)
        + f": {number(constant)} is the loss of always predicting the average of the targets",
        why=_guess_cause(trace, worse, taught, fit),
        rank=rank,
        event=fit,
    )


def _guess_cause(trace: Trace[Event], worse: bool, taught: bool, fit: BaselineFit) -> str:
    """Say what may be wrong, and what that is known from."""
    if worse:
        return tell_of_outputs(trace, fit) or (
            "perhaps a rate that is too high, inputs or weights that are far too large, or a"
            " sign that is turned"
        )
    if fit.reconstructs and fit.only < ALONE:
        return (
            "its targets are the inputs, so another term drowns it: perhaps that is summed over"
            " dimensions, as a divergence is, and this is a mean over all elements; sum both over"
            " a sample"
        )
    if fit.evaluated >= _LEARNABLE:
        return (
            f"a small regression explains {fit.evaluated:.0%} of targets of the evaluation that it"
            f" was not shown, and {max(fit.learnable, 0):.0%} of those of the training: perhaps its"
            " inputs and labels are put in other orders, or selected apart"
            + in_line(*lines_of_origin(trace, "order of rows"))
        )
    if causes := find_causes(trace, fit):
        return "; ".join(causes)
    if taught:
        return (
            f"a small regression on {fit.inputs} of these inputs explains {fit.learnable:.0%} of"
            " targets it was not shown: the input says enough, so look at what the outputs depend"
            " on, at the loss's arguments and at the rate"
        )
    return (
        "perhaps inputs and targets do not belong together, one term drowns this one, or the rate"
        " is far too low; or there is nothing to learn"
    )


def is_conclusive(fit: BaselineFit) -> bool:
    """Say whether there are enough calls, with targets that vary, and with finite losses."""
    known = len(fit.losses) == len(fit.constants) > 0
    if not known or not all(isfinite(value) for value in (*fit.losses, *fit.constants)):
        return False
    least = _LEAST_ENTROPY if fit.function.startswith(_ENTROPIES) else 0.0
    return fit.calls >= _LEAST_CALLS and _mean(fit.constants, 0.75, 1) > least


@invariant("loop", evidence=either(FITS, has_probe("one target", "-"), has_probe("covered", "-")))
def targets_vary(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The targets of a classifier contain more than one class.

    Judges: losses of three classes or more that were called 48 times or more, where a parameter of
        the model has a row for each class: whether all targets that count, at all places with as
        many classes, were of one class. Of cross entropies, also of two classes or of single
        probabilities: two losses or more that train the layer of an output, which nothing else
        trains, and of which all had one target in 8 steps that were looked at, or more. A note
        where there is one optimizer. Losses of some places of rows of tokens, all of which have the
        token that stands there as their target, 64 or more: whether half of them are one token that
        comes in no other place.
    Allows: places of a batch as targets, as contrastive losses have them; two classes, of which one
        may be what is left out elsewhere; an output with a single loss, such as that of ends which
        have not come yet; what a part of a loss that is written by hand trains too.
    Misses: targets of one class that are joined by a few others; products as scores of pairs.
    Why: labels that were taken after their tokens were masked, or read from the wrong column, are
        learned at once, with an accuracy of 1. A critic that is told that what was made is real
        says so of everything.
    Source: huggingface/transformers' data collator for masked language models, which clones the
        labels before it masks the inputs; SerezD/vqvae-vqgan-pytorch-lightning issue 3.
    """
    for probe in find_one_targets(trace):
        yield _describe_one_target(trace, probe)
    for probe in events(trace, Probe):
        if probe.probe == "covered":
            yield _describe_covered(trace, probe)
    fits = [f for f in events(trace, BaselineFit) if f.classes >= _SEVERAL]
    for fit in fits:
        others = {other.single for other in fits if other.classes == fit.classes}
        if fit.calls >= _LEAST_CALLS and others == {fit.single} != {-1}:
            yield Finding(
                f"all targets of `{trace.subject}` are of one class",
                f"{fit.function}, {fit.calls} calls, whose targets are class {fit.single} alone",
                portion(1, fit.classes, "classes"),
                "several of them",
                why="look at the targets here: perhaps they were made of inputs that had been"
                " changed in place, or another column was read",
                event=fit,
            )


def _describe_one_target(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about an output that all losses pull to one number."""
    several = len(courses(trace)) > 1
    return Finding(
        f"all losses that train an output of `{trace.subject}` have one and the same target",
        f"{probe.reference:g} losses, of which this is the last",
        number(float(probe.label)) + f" in all of {probe.measured:g} steps that were looked at",
        "another one for some samples",
        why="the output learns a constant: generated or sampled inputs may"
        " need another target, such as zeros_like",
        rank=Rank.BROKEN if several else Rank.NOTE,
        event=probe,
    )


def _describe_covered(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about targets that are what hides them."""
    return Finding(
        f"targets of `{trace.subject}` are the mask token, not the tokens that it hides",
        f"{probe.label}, which is in no place that does not count",
        portion(probe.measured, probe.reference, "targets")
        + " are that token, and all stand in their own places of the input",
        "what the token hides",
        why="the labels were taken after the tokens were masked, or are the same memory: take"
        " inputs.clone() as labels before anything is masked",
        event=probe,
        source=probe.source,
    )


@invariant("loop", evidence=FITS)
def outputs_follow_inputs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Samples with different inputs and targets get different outputs.

    Judges: what torch's loss functions are given, in the last 24 calls of a run that were looked
        at, or more; and whether the inputs themselves differ.
    Allows: differences above 1e-4 of a logit, or of the spread of the targets in the batch.
    Misses: batches of one sample; models whose first input is not what they depend on.
    Why: a softmax over one output, dead units and images that were cast to bytes all train without
        an error, and return one and the same answer.
    Source: Stack Overflow questions 34673164 (softmax over one output) and 48385830 (inputs of 0).
    """
    least = int(trace.limit("outputs_follow_inputs", _LEAST_ALIKE))
    for fit in events(trace, BaselineFit):
        same = min(max(fit.alike, fit.blank), fit.calls)  # one that is looked at stands for several
        if same < max(least, _LEAST_SHARE * fit.calls):
            continue
        blank = fit.blank > fit.alike
        what = "inputs" if blank else "outputs"
        yield Finding(
            f"the {what} of `{trace.subject}` are the same for every sample of a batch",
            f"{fit.function}, in the last {same} of {fit.calls} calls",
            "one and the same for targets that differ",
            f"{what} that differ as the targets do",
            why="perhaps numbers below one that were cast to integers, or the same row for all"
            + before_loader(trace)
            if blank
            else tell_of_outputs(trace)
            or "perhaps a softmax over a dimension of size one, units that are dead or saturated,"
            " or features that are replaced by a constant",
            event=fit,
        )


@invariant("loop", evidence=SKILLS)
def evaluation_beats_chance(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A classifier that has learned its training data beats chance in evaluation.

    Judges: the accuracy of the last evaluations, in the second half of a run whose training loss
        ended below 0.7 of that of a constant, where a small regression on training inputs explains
        30 % of targets that it was not shown: it is above the share of the commonest class. Of
        any inputs: it is not five deviations below the share of the rarest class.
    Allows: runs in whose second half another optimizer begins, as trials of a search do, or folds;
        chance and two of its standard deviations (limit: their number) in some place, as long
        as another evaluation is better: attacks, prunings and other domains are measured beside. A
        mean recall of the classes that is better than chance: who trains on rare classes more often
        than they come is right less often, and means it.
    Misses: evaluations of fewer than 64 samples; outputs that are no scores of classes.
    Why: inputs that are normalised in training alone, labels in another order, batch statistics
        that never followed: the model has learned, and what is reported does not show it.
    Source: keras-team/keras pull request 9965; Stack Overflow question 47167409.
    """
    deviations = trace.limit("evaluation_beats_chance", 2.0)
    late = 0.5 * sum(step.span for step in events(trace, Step))
    skills = [s for s in events(trace, Skill) if s.rows >= _LEAST_ROWS and s.step >= late]
    if not skills or any(_is_skilled(skill, deviations) for skill in skills):
        return
    if _begins_anew(trace, late):
        return
    perverse = all(map(_is_perverse, skills))
    learned = [
        f
        for f in events(trace, BaselineFit)
        if is_conclusive(f) and (perverse or f.learnable >= _LEARNABLE)
    ]
    for fit in learned[:1]:
        if fit.only >= ALONE and share_of_constant(fit, 0.75, 1) <= _LEARNED:
            yield _describe_skill(trace, skills[0], fit)


def _begins_anew(trace: Trace[Event], late: float) -> bool:
    """Say whether an optimizer begins after so many steps, perhaps that of another model."""
    made, known = 0, set[str]()
    for step in events(trace, Step):
        if made >= late and step.optimizer not in known:
            return True
        known.add(step.optimizer)
        made += step.span
    return False


def _is_skilled(skill: Skill, deviations: float) -> bool:
    """Say whether an evaluation is better than naming the commonest class, in all or by class."""
    chance = min(skill.commonest / skill.rows, 1.0)
    spread = sqrt(chance * (1 - chance) * skill.rows)
    better = skill.right > skill.commonest + deviations * spread
    return better or (skill.spread > 0 and skill.recall > _BY_CLASS * skill.spread)


def _is_perverse(skill: Skill) -> bool:
    """Say whether an evaluation is right far less often than naming the rarest class."""
    share = min(skill.rarest / skill.rows, 1.0)
    return skill.right < skill.rarest - _DEVIATIONS * sqrt(share * (1 - share) * skill.rows)


def _describe_skill(trace: Trace[Event], skill: Skill, fit: BaselineFit) -> Finding:
    """Return the finding about an evaluation."""
    ratio = share_of_constant(fit, 0.75, 1)
    return Finding(
        f"the model of `{trace.subject}` learns, and its evaluation is no better than chance",
        f"step {skill.step}, with a training loss at {percent(ratio)} of a constant's",
        "right for " + percent(skill.right / skill.rows) + f" of {skill.rows} samples",
        "above " + percent(skill.commonest / skill.rows) + ", the share of the commonest class",
        why="perhaps evaluation inputs are not prepared as training inputs are, labels stand in"
        " another order, batches hold one class each (nothing shuffles them), statistics of batch"
        " norm did not follow, or another model is evaluated",
        event=skill,
    )


def _mean(values: Sequence[float], low: float, high: float) -> float:
    """Return the mean of one part of the run."""
    part = values[int(low * len(values)) : max(int(high * len(values)), 1)] or values[-1:]
    return sum(part) / len(part)


def share_of_constant(fit: BaselineFit, low: float, high: float) -> float:
    """Return the loss of one part of the run over that of the constant."""
    constant = _mean(fit.constants, low, high)
    return _mean(fit.losses, low, high) / constant if constant > 0 else 0.0


def _is_hidden_by_outliers(fit: BaselineFit) -> bool:
    """Say whether few targets make most of the loss, and the model beats the constant without."""
    late = len(fit.losses) - max(len(fit.losses) // 4, 1)
    pairs = sorted(zip(fit.constants[late:], fit.losses[late:], strict=True))
    constants, losses = zip(*pairs[: max(len(pairs) // 4, 1)], strict=True)
    rare = _mean(constants, 0, 1) < _QUIET * _mean(fit.constants, 0.75, 1)
    return rare and sum(losses) < _LEARNED * sum(constants)
