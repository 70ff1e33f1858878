"""Judgements of models that are asked and do not learn: whether they sleep while they are."""

from collections.abc import Iterator, Sequence

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import at_step, integer, number, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import and_more, events, root_of

_KEPT = 3  # losses with answers that were kept
_MOVED = 0.4  # deviations: batches of 16 of the same data move statistics by 0.1 or less
_FROZEN = 50  # steps that ask a module that does not move: fewer may lie between two updates of it


@invariant(
    "loop",
    evidence=either(
        has_probe("reference", "no model was asked that does not move"),
        has_probe("frozen statistics", "-"),
        has_probe("kept answers", "-"),
        has_probe("drifted", "-"),
    ),
)
def references_are_in_evaluation_mode(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A model that is used but not trained, such as a teacher, is in evaluation mode.

    Judges: modules, and parts of those that learn, that most steps call without a graph, on the
        CPU, with dropout or batch statistics awake in them, and of which no number moves from there
        to the end: over 50 steps or more. Answers that were given in a stretch of such passes, by a
        model that has not moved since, and that are the targets of 3 losses or more later on, as
        they are or after a softmax. A note of batch normalisation in a frozen part of a model
        that learns, whose statistics followed the batches in 16 passes or more: one that never
        learned, or that learned before an optimizer began and stayed as it was from there on. That
        is broken where an evaluation calls a head that these passes do not call, none of whose
        numbers have moved since, and the statistics of a layer have by 0.4 deviations.
    Allows: averages of the model, target networks that are updated, and rollouts of a policy, since
        they move; modules that are kept awake in a model in evaluation mode; parts that are thawed.
    Misses: dropout in frozen parts that are called with a graph; parameters that move elsewhere
        than at their beginnings.
    Why: `student.train()` on a module that holds its teacher wakes the teacher too: its answers
        become noise, and its batch statistics follow what the student is shown.
    Source: huggingface/transformers' distillation examples, which call teacher.eval(); Stack
        Overflow question 50233272, on batch norm in frozen models.
    """
    references = [p for p in events(trace, Probe) if p.probe == "reference"]
    awake = [probe for probe in references if probe.measured >= _FROZEN]
    for probe in awake:
        yield Finding(
            f"a model of `{trace.subject}` that is not being trained is in training mode",
            at_step(probe.step) + f", {probe.label}",
            "awake in " + portion(probe.measured, probe.reference, "steps"),
            "asleep",
            why="perhaps train() was called on a module that holds it: call eval() after that",
            event=probe,
        )
    yield from _find_kept_answers(trace)
    drifted = _find_drifted_heads(trace)
    yield from drifted
    if not awake and not drifted:  # that moves their batch statistics too
        yield from _find_frozen_statistics(trace)


def _find_kept_answers(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding where what is learned is what a model answered in training mode."""
    for probe in events(trace, Probe):
        if probe.probe == "kept answers" and probe.measured >= _KEPT:
            yield Finding(
                f"`{trace.subject}` learns from outputs of a model that was in training mode",
                at_step(probe.step) + f", {probe.label}",
                portion(probe.measured, probe.reference, "targets")
                + " are answers with that awake, of a model that no longer learns",
                integer(0, "targets"),
                why="call eval() on the model before its outputs are kept: dropout noise and"
                " batch statistics become part of the targets",
                event=probe,
            )


def _find_drifted_heads(trace: Trace[Event]) -> list[Finding]:
    """Return a finding for a head that is asked behind statistics of what another one learns."""
    return [
        Finding(
            f"`{trace.subject}` asks a head behind batch statistics that follow another one's data",
            at_step(probe.step) + f", {probe.label}, which no longer learns",
            number(probe.measured, "deviations")
            + f", the move of the statistics before it in {probe.reference:.0f} passes",
            number(_MOVED, "deviations"),
            why="requires_grad_(False) freezes parameters and no statistics: call eval() of the"
            " frozen part after each train() of the model",
            event=probe,
        )
        for probe in [p for p in events(trace, Probe) if p.probe == "drifted"][:1]
        if probe.measured >= _MOVED
    ]


def _find_frozen_statistics(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note of batch statistics that move in a part of which nothing ever learns."""
    own = [p for p in events(trace, Parameter) if not p.copy]
    found = [
        probe
        for probe in events(trace, Probe)
        if probe.probe == "frozen statistics"
        and (probe.reference or _is_in_frozen_part(probe.label, own))
    ]
    moved = found and any(p.moved and root_of(p.name) == root_of(found[0].label) for p in own)
    if found and (moved or any(probe.reference for probe in found)):
        yield note(
            f"batch statistics of a frozen part of `{trace.subject}` follow the training",
            and_more(probe.label for probe in found),
            "moved by " + integer(found[0].measured, "training passes"),
            "as they were when it was frozen",
            why="requires_grad_(False) freezes parameters and no statistics: call eval() of the"
            " frozen part after each train() of the model",
            event=found[0],
        )


def _is_in_frozen_part(layer: str, parameters: Sequence[Parameter]) -> bool:
    """Say whether the innermost part around a layer that has weights is frozen for good."""
    part = layer
    while part := part.rpartition(".")[0]:
        inside = [p for p in parameters if p.name.startswith(part + ".")]
        if any(p.dimensions > 1 for p in inside):
            return not any(p.trainable or p.thawed or p.learns or p.moved for p in inside)
    return False
