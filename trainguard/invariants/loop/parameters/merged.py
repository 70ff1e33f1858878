"""Judgements of weights that something is merged into, or that are drawn anew, and lost so."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # evaluations: once, weights may be exchanged on purpose


@invariant("loop", evidence=has_probe("merged", "no evaluation changed frozen weights"))
def merged_weights_are_taken_apart(trace: Trace[Event]) -> Iterator[Finding]:
    """
    What is merged into frozen weights for an evaluation is taken out of them again.

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


@invariant("loop", evidence=has_probe("drawn anew", "no training went on with a part of another"))
def learned_weights_are_kept(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A training that goes on with what another one has learned finds it there.

    Judges: an optimizer that begins with matrices of another one, which had made 16 steps, and one
        of the two has matrices that the other has not: whether all that both have were drawn or
        set by a function of torch.nn.init between.
    Allows: some of them that are drawn anew, as a head is; whole models that begin once more, as
        for another part of the data.
    Misses: what is drawn by other functions, as weight.data.normal_(); vectors.
    Why: `self.apply(init)` in a module that is handed an encoder draws the encoder anew, too: what
        it has learned is gone, and training merely takes longer.
    Source: ImCharlesY/AdaInt pull request 12; huggingface/transformers pull request 46632.
    """
    for probe in events(trace, Probe):
        if probe.probe == "drawn anew":
            yield Finding(
                f"what `{trace.subject}` has learned is drawn anew before it is used",
                f"a training of {probe.step} steps, and another one that goes on with a part of it",
                integer(probe.measured, "matrices") + " of both were drawn anew between, and none"
                " was left",
                integer(1, "matrix") + " or more as it was learned",
                why="initialise new parts alone, such as `self.head.apply(init)`, or before the"
                " module is given what was learned",
                event=probe,
                source=probe.source,
            )
