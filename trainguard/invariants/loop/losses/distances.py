"""Judgements of the distances in a loss: whether they are of two things."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 4  # looks: a copy is what it is of for a step


@invariant("loop", evidence=has_probe("self distance", "no loss had a distance that can be read"))
def distances_are_of_two(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A distance in a loss compares two different tensors, not one with itself.

    Judges: squares and sizes of differences, and what mse_loss, huber_loss and smooth_l1_loss are
        given, in the losses of 4 looks or more, at steps 1, 2, 4, 8, 16 and 32: whether all
        distances of a kind are zero, exactly, in each of them. Kinds: those of parameters to
        constants, and differences whose two sides are one tensor.
    Notes: the same of all that loss functions are given: a model may be made to return a target.
    Allows: a distance that is zero in some of the looks, as right after a copy was made; outputs
        and targets that are zero themselves.
    Misses: divergences of distributions; distances of products; accelerators.
    Why: `list(model.parameters())`, `detach()` and `state_dict()` are the live weights: a pull
        towards what they were pulls at nothing, and no loss tells it.
    Source: documentation of torch.Tensor.detach ("shares the same storage"); Li et al. 2020,
        Federated Optimization in Heterogeneous Networks (arXiv 1812.06127), section 3.2.
    """
    for probe in events(trace, Probe):
        if probe.probe == "self distance" and probe.measured >= _LEAST:
            yield Finding(
                f"a distance in the loss of `{trace.subject}` is always zero",
                probe.label,
                portion(probe.measured, probe.reference, "looks") + " have zero, exactly",
                integer(0, "looks from the second step on"),
                why="what is kept may be the live tensor: keep p.detach().clone(), or"
                " copy.deepcopy(model)",
                rank=Rank.NOTE if probe.label.startswith("what") else Rank.BROKEN,
                event=probe,
                source=probe.source,
            )
