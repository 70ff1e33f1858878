"""Judgement of weights that are drawn anew, where something had been learned."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant("loop", evidence=has_probe("drawn anew", "no training went on with a part of another"))
def learned_weights_are_kept(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Weights learned in one training are not reinitialised before the next one uses them.

    Judges: an optimizer that begins with matrices of another one, which had made 16 steps, and with
        others of its own: whether all that both have were drawn or set by a function of
        torch.nn.init between.
    Allows: some of them that are drawn anew; whole models that begin once more, as for another part
        of the data, and heads that do, over what stays as it is.
    Misses: what is drawn by other functions, as weight.data.normal_(); vectors.
    Why: `self.apply(init)` in a module that is handed an encoder draws the encoder anew, too: what
        it has learned is gone, and training merely takes longer.
    Source: ImCharlesY/AdaInt pull request 12; huggingface/transformers pull request 46632.
    """
    for probe in events(trace, Probe):
        if probe.probe == "drawn anew":
            yield Finding(
                f"weights that `{trace.subject}` has learned are reinitialised before use",
                f"a training of {probe.step} steps, and another one that goes on with a part of it",
                integer(probe.measured, "matrices") + " of both were drawn anew between, and none"
                " was left",
                integer(1, "matrix") + " or more as it was learned",
                why="initialise new parts alone, such as `self.head.apply(init)`, or before the"
                " module is given what was learned",
                event=probe,
                source=probe.source,
            )
