"""Judgements of the messages that the nodes of a graph send each other."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 2  # looks


@invariant("loop", evidence=has_probe("messages returned", "no messages along edges were seen"))
def messages_reach_other_nodes(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Message passing sends each message from one end of an edge to the other.

    Judges: rows that are read by one index and added up by another below a loss, 32 or more, in 2
        looks or more: whether all of them are added up by the index that they are read by, which is
        one row of a table of edges among the variables of the script, and nothing is read or added
        up by the other row.
    Allows: what is read by both ends, as attention is; indices that are of no table of edges, as
        where tokens go to their experts and come back; edges from each node to itself.
    Misses: edges in two variables, on an accelerator, or that a library has.
    Why: each node gets its own row back, as often as it has edges: the graph says nothing but how
        many these are, and a network without it learns as much.
    Source: documentation of torch_geometric.nn.MessagePassing (flow: from source to target).
    """
    for probe in events(trace, Probe):
        returned = probe.probe == "messages returned" and probe.measured >= _LEAST
        if returned and probe.measured == probe.reference:
            yield Finding(
                f"graph messages of `{trace.subject}` go back to the node that sent them",
                "rows of nodes that are read and added up by one and the same end of their edges",
                portion(probe.measured, probe.reference, "steps")
                + " in which nothing depends on the other end",
                integer(0, "steps"),
                why="add up at the other end: what is read by edge_index[0] goes to edge_index[1]",
                event=probe,
            )
