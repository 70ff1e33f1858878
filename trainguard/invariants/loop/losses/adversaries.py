"""Judgements of modules that learn from each other's scores: generators and discriminators."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.losses.causes import find_one_targets
from trainguard.invariants.loop.wording import events


@invariant("loop", evidence=has_probe("same pull", "no module judged what another one makes"))
def adversaries_pull_apart(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A generator and its discriminator push the scores of generated samples opposite ways.

    Judges: modules that are given what another module has made, and other data: a discriminator, a
        critic. By the gradients of its scores: its own steps pull those of the one up and those of
        the other down, and the steps of who does not hold its parameters pull them the same way as
        its own, nearly always (95 %), in 8 steps of each kind or more.
    Allows: modules whose own steps do not pull apart; scores that are pulled either way; both in
        one step, as behind a reversed gradient.
    Misses: what is made and other data in one batch; what is made that is changed or joined before
        it is judged; what is not on the CPU.
    Why: the generator then helps the discriminator, and learns to be found out: both losses fall.
    Source: Goodfellow et al., 2014, section 3 (arxiv.org/abs/1406.2661); ptran1203/pytorch-animeGAN
        issue 17 (zeros_like in the loss of the generator).
    """
    for probe in events(trace, Probe):
        if probe.probe == "same pull":
            yield Finding(
                f"the generator of `{trace.subject}` is trained to be recognised as fake",
                f"the scores that {probe.label} returns for it",
                integer(probe.measured) + " steps of what makes it pull them as its judge's own do",
                "the other way",
                why="perhaps its loss needs the label of real data, or a minus sign: samples are"
                " to pass for real",
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("one pull", "no module judged what another one learns from"))
def discriminators_learn_both_answers(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A discriminator or critic learns to score some samples high and others low.

    Judges: modules whose scores of what another module has made train that module, while steps of
        their own train them: whether all gradients of their scores in all of their own steps have
        one sign, at each place of each pass (8 passes or more of each kind).
    Allows: steps of which a few pull the other way, or that pull the scores of one pass both ways,
        as where data and what is made are one batch.
    Misses: what is made that is changed or joined before it is judged; what is not on the CPU;
        outputs with one target in all losses, of which `targets_vary` tells.
    Why: a term of its loss is left out, has no graph, or has the label or the sign of the other:
        its bias alone then gives the answer, and what learns from it learns nothing of the data.
    Source: Goodfellow et al., 2014, algorithm 1 (arxiv.org/abs/1406.2661): both terms.
    """
    if find_one_targets(trace):
        return
    for probe in events(trace, Probe):
        if probe.probe == "one pull":
            name, way = probe.label.split("\n")
            yield Finding(
                f"{name} in `{trace.subject}` is trained to score all samples alike",
                f"the scores of {name}, from which another module learns",
                portion(probe.measured, probe.measured, "passes")
                + f" are pulled {way} by its own steps, {_kinds(probe)}",
                "some up and others down",
                why="perhaps a term of its loss is left out, or detached, or its label or sign is"
                " that of the other term",
                event=probe,
                source=probe.source,
            )


def _kinds(probe: Probe) -> str:
    """Tell what a module was given in its own steps."""
    made = probe.reference
    if not made:
        return "none of them over what was made"
    return "all of them over what was made" if made == probe.measured else "of both kinds"
