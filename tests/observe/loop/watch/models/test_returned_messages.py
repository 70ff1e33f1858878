"""Messages of a graph that come back to the nodes that they are from."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Way = Callable[["Graph", torch.Tensor, torch.Tensor], torch.Tensor]


class Graph(nn.Module):
    """A network of nodes, whose messages go some way."""

    def __init__(self, way: Way, width: int = 4) -> None:
        super().__init__()
        self.way, self.first = way, nn.Linear(4, 4)
        self.message, self.last = nn.Linear(width, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return a number for each node."""
        sums = torch.zeros(len(x), 4).index_add(0, *self.way(self, x, edges))
        return self.last(x + sums)[:, 0]


def inner(graph: Graph, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return messages of what a layer makes of the nodes."""
    return graph.message(graph.first(x)[rows])


WAYS = {
    "back": lambda graph, x, edges: (edges[0], inner(graph, x, edges[0])),
    "back to the second end": lambda graph, x, edges: (edges[1], inner(graph, x, edges[1])),
    "back, of inputs": lambda graph, x, edges: (edges[0], graph.message(x[edges[0]])),
    "on": lambda graph, x, edges: (edges[1], inner(graph, x, edges[0])),
    "on, of inputs": lambda graph, x, edges: (edges[1], graph.message(x[edges[0]])),
    "of both": lambda graph, x, edges: (
        edges[0],
        inner(graph, x, edges[0]) + inner(graph, x, edges[1]),
    ),
    "of no nodes": lambda graph, x, edges: (edges[0], graph.message(torch.ones(len(edges[0]), 4))),
}
WIDE = {
    "back, beside others": lambda graph, x, edges: (
        edges[0],
        graph.message(torch.cat([x[edges[0]], torch.ones(len(edges[0]), 2)], 1)),
    ),
    "back, behind others": lambda graph, x, edges: (
        edges[0],
        graph.message(torch.cat([torch.ones(len(edges[0]), 2), x[edges[0]]], 1)),
    ),
}
RETURNED = {"back", "back to the second end", "back, of inputs", *WIDE}


def found(graph: Graph, count: int = 96, table: bool = True) -> list[tuple[float, float]]:
    """Train, and return at how many looks nothing came to another node, of how many."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randn(40)
    edges = torch.randint(40, (2, count))
    given = edges if table else [edges[0].clone(), edges[1].clone()]
    del edges
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(graph.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.mse_loss(graph(x, given), y).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe)]
    return [(p.measured, p.reference) for p in probes if p.probe == "messages returned"]


@pytest.mark.parametrize("name", [*WAYS, *WIDE])
def test_where_messages_go(name: str) -> None:
    """Back to where they are from, by the graph or by the values of an input; or on."""
    graph = Graph((WAYS | WIDE)[name], 6 if name in WIDE else 4)
    assert found(graph) == ([(3.0, 3.0)] if name in RETURNED else [])


class Both(Graph):
    """A network whose messages go to both ends."""

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return a number for each node."""
        sent = inner(self, x, edges[0])
        sums = torch.zeros(len(x), 4).index_add(0, edges[1], sent)
        return self.last(x + sums.index_add(0, edges[0], sent))[:, 0]


def test_messages_that_go_to_both_ends() -> None:
    """Some come back, and some do not."""
    assert found(Both(WAYS["back"])) == []


def test_indices_that_are_no_edges() -> None:
    """As those of tokens that go to their experts and come back; and a few edges."""
    assert found(Graph(WAYS["back"]), table=False) == []
    assert found(Graph(WAYS["back"]), count=16) == []
