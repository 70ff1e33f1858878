"""Batches of graphs: how they are told from other numbers, and where their edges lie."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

NODES = 6  # of each of eight graphs
GRAPHS = torch.arange(8).repeat_interleave(NODES)


class Net(nn.Module):
    """Adds up the states of each graph."""

    def __init__(self):
        super().__init__()
        self.kinds, self.features = nn.Embedding(8, 4), nn.Linear(3, 4)

    def forward(self, nodes, edges, graphs):
        """Return a number for each graph."""
        states = self.features(nodes) if nodes.is_floating_point() else self.kinds(nodes)
        states = states.index_add(0, edges[1], states[edges[0]])
        return torch.zeros(16, 4).index_add(0, graphs, states).sum(1)


def crowded(nodes, is_joined: bool) -> list[float]:
    """Train on rings, and return how many passes had their edges in few graphs."""
    torch.manual_seed(0)
    ring = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    edges = torch.cat([ring + NODES * number * is_joined for number in range(8)], 1)
    with Recorder("x") as recorder:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            net(nodes, edges, GRAPHS).square().mean().backward()
            optimizer.step()
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [probe.measured for probe in probes if probe.probe == "graphs"]


@pytest.mark.parametrize("nodes", [torch.randn(48, 3), torch.arange(48) % 7])
def test_edges_of_all_graphs(nodes) -> None:
    """Nodes have features or kinds; edges that were not moved lie in the first graph."""
    assert crowded(nodes, is_joined=False) == [4.0]
    assert crowded(nodes, is_joined=True) == []


def crossed(apart: list[int], offset, joins: int = 0, spaced: int = 1) -> list[float]:
    """Train on lines with single nodes behind them, and return how many passes had edges across."""
    with Recorder("x") as recorder:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(6):
            sizes = [3 + (number + step) % 4 for number in range(8)]
            edges, graphs, before = [], [], 0
            for number, (size, single) in enumerate(zip(sizes, apart, strict=True)):
                line = torch.arange(size - 1)
                edges.append(torch.stack([line, line + 1]) + before)
                nodes = size + single + step * (number == 7)
                graphs.append(torch.full((nodes,), spaced * number))
                before += offset(size, nodes)
            if joins:
                edges.append(torch.tensor([[0], [sum(map(len, graphs)) - joins]]))
            of = torch.cat(graphs)
            optimizer.zero_grad()
            net(torch.randn(len(of), 3), torch.cat(edges, 1), of).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [probe.measured for probe in probes if probe.probe == "crossed graphs"]


def test_edges_between_graphs() -> None:
    """Graphs are counted by their edges, or by their nodes; an edge to the last node is meant."""
    apart = [1, 0, 0, 2, 0, 0, 0, 0]
    assert crossed(apart, lambda edges, nodes: edges) == [6.0]
    assert crossed(apart, lambda edges, nodes: nodes) == []
    assert crossed(apart, lambda edges, nodes: nodes, joins=1) == []
    assert crossed(apart, lambda edges, nodes: edges, spaced=2) == []  # times, perhaps
