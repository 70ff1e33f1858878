"""Judgements of the layers of a model: each is one of its own, and does something of its own."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant("loop", evidence=has_probe("shared", "no probe was made"))
def layers_are_distinct(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The layers of a list are separate modules, not one module repeated.

    Judges: modules that stand at several places of a list. Broken where the user's code makes such
        a layer inside of a list that it multiplies, as in `[nn.Linear(8, 8)] * 6`; else a note.
    Allows: sharing outside of lists, such as tied embeddings.
    Misses: layers that share their weights and not themselves.
    Why: [layer] * 6 is six times the same layer: a sixth of the parameters, under another name.
    Source: zalandoresearch/pytorch-vq-vae issue 2; linkedin/Liger-Kernel pull request 269.
    """
    for probe in events(trace, Probe):
        if probe.probe == "shared" and probe.measured > 1:
            yield Finding(
                f"a model of `{trace.subject}` holds one layer at several places of a list",
                probe.label,
                integer(probe.measured, "places"),
                Measure("1 place", 1, "places"),
                rank=Rank.BROKEN if probe.reference else Rank.NOTE,
                why="[layer] * n repeats one layer; [make_layer() for _ in range(n)] makes several",
                event=probe,
            )


@invariant("loop", evidence=has_probe("stacked", "no graph of a loss was small enough"))
def linear_layers_are_separated(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Consecutive linear layers are separated by a nonlinearity.

    Judges: the graphs of the losses of six early steps: products with two weight matrices that
        learn, of which the second one is given what the first one makes, and nothing else is. They
        are one linear layer, and where it is wider between them than before and after, no less can
        be meant. What is found is a note.
    Allows: what is as narrow as one of its sides: low ranks, codes and projections.
    Misses: convolutions, dropout or batch statistics between the two, layers that keep the width.
    Why: an activation that is computed and not used, or was left out, costs nothing but what the
        model could have learned.
    Source: Nota-NetsPresso/netspresso-trainer issue 320; UMLAUT (CHI 2021).
    """
    for probe in events(trace, Probe):
        if probe.probe == "stacked":
            yield note(
                f"two linear layers of `{trace.subject}` are one",
                probe.label,
                "wider between them, " + integer(int(probe.measured)),
                "at most " + integer(int(probe.reference)) + ", as around them, or an activation",
                why="perhaps an activation was left out, or what it returns is not used",
                event=probe,
            )
