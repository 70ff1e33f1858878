"""Judgements of frozen weights that something is merged into for an evaluation."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # evaluations: once, weights may be exchanged on purpose


@invariant("loop", evidence=has_probe("merged", "no evaluation changed frozen weights"))
def merged_weights_are_taken_apart(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Adapters merged into frozen weights for an evaluation are fully unmerged afterwards.

    Judges: frozen matrices of a module of which other parts learn: as they last learned, in the
        first pass of an evaluation, and in the next pass that learns. Where the evaluation has
        others: whether they come back to within 1 % of the change, in all evaluations that changed
        them, 2 (limit) or more.
    Allows: rounding; weights that stay as they were in the evaluation, as those that are loaded.
    Misses: elements that no sample has; weights that learn, and averages that are put in for them.
    Why: adapters that are merged with a factor and taken out without it leave a share of themselves
        in the frozen weights, with each evaluation more.
    Source: microsoft/LoRA, loralib/layers.py (`train` merges and unmerges with one scaling).
    """
    least = trace.limit("merged_weights_are_taken_apart", _LEAST)
    for probe in events(trace, Probe):
        if probe.probe == "merged" and least <= probe.measured == probe.reference:
            yield Finding(
                f"evaluations of `{trace.subject}` leave frozen weights changed",
                probe.label,
                "neither as before nor as within, after "
                + portion(probe.measured, probe.reference, "evaluations"),
                "as before",
                why="take out of the weights exactly what was merged into them, its factor too",
                event=probe,
            )
