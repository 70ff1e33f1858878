"""Judgements of labels: whether they are those of their inputs."""

from collections.abc import Iterator
from math import isnan

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.core.names import TRAINING, words_of
from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit, Skill
from trainguard.events.loop import Logged, Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evaluations.accuracy_bases import means_accuracy
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.losses.chance import BEATEN, is_conclusive, share_of_constant
from trainguard.invariants.loop.wording import events, in_line, lines_of_origin, percent

_NOTHING = 0.05  # of the variance of targets: what is explained by chance of 256
_MUCH = 0.5  # of it: twenty times chance
_AS_FAR = 1.15  # of a distance: inputs of one kind; those that are drawn anew each time are farther
_LEAST_INPUTS = 128  # half of what is remembered at most
_LEAST_ROWS = 64
_LEARNED = 0.25  # of what is between chance and all: a quarter is learned in any of these runs


def _lacks_pairs(trace: Trace[Event]) -> str:
    """Return why nothing is known of the pairs of a training, or of those of its evaluation."""
    fits = events(trace, BaselineFit)
    known = any(fit.learnable >= _NOTHING or not isnan(fit.evaluated) for fit in fits)
    return "" if known else "no pairs of a training and of its evaluation were known"


@invariant("loop", evidence=either(_lacks_pairs, has_probe("collated", "-")))
def labels_belong_to_their_inputs(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Training labels belong to their inputs, as evaluation labels do.

    Judges: losses of classes that were called 48 times or more, and evaluations by the same kind of
        targets: whether a small regression explains half of the targets of an evaluation that it
        was not shown, and nothing of those of the training, though the inputs of both are as near
        to each other; and no evaluation in the second half of the run is right for a quarter more
        than the commonest class, by what it compared or by the accuracy that is said. A note where
        neither is known. Collate functions that order one field of samples by length, and leave
        another as it was, by 16 samples that a child collates.
    Allows: labels with noise, from which something is learned; inputs that are augmented, which are
        farther from those of an evaluation. Labels that are drawn on purpose, to see what a network
        can learn by heart, look the same: give that reason.
    Misses: pairs that a regression on 256 of them does not explain; inputs that are several
        tensors, but for the first; fields that are changed as they are collated; collate functions
        that return their order, too.
    Why: labels that were sorted, filtered or shifted apart from their inputs are learned by heart,
        and the loss falls.
    Source: udacity/sdc-issue-reports issue 1326; aidotse/LeakPro issue 315.
    """
    for probe in events(trace, Probe):
        if probe.probe == "collated":
            yield Finding(
                f"samples of `{trace.subject}` are collated with what belongs to others",
                probe.label,
                portion(probe.measured, probe.reference, "samples")
                + " are beside the field of another one: one is ordered by length, and one is not",
                integer(0, "samples"),
                why="sort the samples first, and then take their fields apart",
                event=probe,
            )
    for fit in events(trace, BaselineFit):
        if fit.inputs < _LEAST_INPUTS or not is_conclusive(fit):
            continue
        teaches = fit.learnable < _NOTHING and fit.evaluated >= _MUCH
        falls = share_of_constant(fit, 0.75, 1) < BEATEN  # else that is told
        right = list(_shares_right(trace, fit))
        if teaches and falls and fit.farther <= _AS_FAR and not any(right):
            yield Finding(
                f"the training labels of `{trace.subject}` are unrelated to their inputs",
                f"{fit.function}, {fit.inputs} of its pairs, and those of an evaluation",
                percent(max(fit.learnable, 0.0)) + " of targets that a small regression explains",
                percent(fit.evaluated) + ", or about that, as of those of the evaluation",
                why="inputs and labels may be ordered or filtered differently"
                + in_line(*lines_of_origin(trace, "order of rows")),
                rank=Rank.BROKEN if right else Rank.NOTE,
                event=fit,
            )


def _shares_right(trace: Trace[Event], fit: BaselineFit) -> Iterator[bool]:
    """Say of each evaluation in the second half of a run whether it is right for far more."""
    late = 0.5 * sum(step.span for step in events(trace, Step))
    for skill in events(trace, Skill):
        if skill.rows >= _LEAST_ROWS and skill.step >= late:
            yield _is_far_above(skill.right / skill.rows, min(skill.commonest / skill.rows, 1.0))
    commonest = max(fit.counts) / sum(fit.counts) if fit.counts else 1 / max(fit.classes, 2)
    for said in events(trace, Logged):
        told = means_accuracy(said.name) and TRAINING.isdisjoint(words_of(said.name))
        if told and said.step >= late:
            yield _is_far_above(said.value / (100 if said.value > 1 else 1), commonest)


def _is_far_above(share: float, chance: float) -> bool:
    """Say whether far more is right than what is of the commonest class."""
    return share > chance + _LEARNED * (1 - chance)
