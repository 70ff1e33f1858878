"""Judgements of graphs: whose edges are whose, and which of them messages pass along."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_LEAST = 3  # batches: the first ones may be odd
_PASSED = 0.9  # of the edges held out: a few may come twice


@invariant("loop", evidence=has_probe("graphs", "no batch of graphs was seen"))
def each_graph_keeps_its_edges(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Edge indices in a batch of graphs are offset, so that each graph keeps its own edges.

    Judges: passes that learn from features or kinds of nodes, pairs of nodes and the graph of each
        node, on the CPU: those of four graphs or more, with an edge for each second node, whose
        edges lie in a quarter of the graphs or fewer. Most of these passes, and 3 at least. And
        those with edges between two graphs, where each of these ends before its last node: 3 of
        them, with other numbers of nodes, and none that has such edges and reaches its last node.
    Allows: a few graphs without edges; edges between graphs that are meant, which reach the last.
    Misses: batches that are given as one object; edges between the wrong nodes of their own graph.
    Why: where graphs are joined without the number of nodes before each, all edges connect nodes of
        the first: the others are learned from as bags of nodes. Where that number is counted by the
        largest node of an edge, one node without an edge moves the edges of all that come after it.
    Source: PyTorch Geometric's documentation of mini-batches (edge indices are incremented), and
        its warning where num_nodes is inferred from the edges.
    """
    for probe in events(trace, Probe):
        if probe.measured < _LEAST:
            continue
        if probe.probe == "graphs" and probe.measured >= probe.reference / 2:
            yield Finding(
                f"the edges of `{trace.subject}` lie in the first graphs of a batch alone",
                "batches of nodes, edges and graphs",
                portion(probe.measured, probe.reference, "batches")
                + " have edges in a quarter of their graphs at most",
                "edges in all of them",
                why="add the number of nodes before each graph to its edges where they are joined",
                event=probe,
            )
        if probe.probe == "crossed graphs":
            yield Finding(
                f"edges of `{trace.subject}` connect nodes of different graphs",
                "batches of nodes, edges and graphs",
                portion(probe.measured, probe.reference, "batches")
                + " have edges between two graphs, and none at their last nodes",
                "edges inside of each graph",
                why="add the number of nodes before each graph, len(x), to its edges: the largest"
                " node of its edges is too small where the last nodes have none",
                event=probe,
            )


@invariant("loop", evidence=has_probe("edges passed", "no graph with edges held out was seen"))
def held_out_edges_pass_no_messages(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Held-out edges are not in the graph used for message passing in training.

    Judges: a square matrix without a gradient that rows are multiplied with below a loss, or rows
        that are read by one index and added up by another; 32 pairs of nodes or more that the
        script names after validation or test, beside pairs of the same kind that it names after
        what is no edge, or a loss that scores pairs of which hardly any is one: whether nine of ten
        are edges of that graph, in either direction. In a graph of two kinds of nodes the second of
        a pair may have a number of its own kind.
    Allows: graphs in which three of ten pairs are edges; pairs that are named after neither.
    Misses: graphs and edges with other names, on an accelerator, or made anew from a part.
    Why: nodes that exchange messages get alike representations, which is what the edge is scored
        by: the evaluation asks for what the model was told.
    Source: pyg-team/pytorch_geometric, RandomLinkSplit; Kipf and Welling 2016, Variational Graph
        Auto-Encoders ("trained on an incomplete version").
    """
    for probe in events(trace, Probe):
        if probe.probe == "edges passed" and probe.measured >= _PASSED * probe.reference:
            yield Finding(
                f"`{trace.subject}` passes messages along edges that it is to predict",
                f"the graph below the loss, and `{probe.label}`",
                portion(probe.measured, probe.reference, "edges held out") + " are in it",
                "none",
                why="make the graph from the edges of the training alone",
                event=probe,
            )
            return
