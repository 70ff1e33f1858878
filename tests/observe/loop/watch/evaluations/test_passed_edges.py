"""Which edges of an evaluation messages go along."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

NODES = 60


def split() -> tuple[torch.Tensor, torch.Tensor]:
    """Return edges of the training, and others, (2, E)."""
    generator = torch.Generator().manual_seed(0)
    free = torch.ones(NODES, NODES).triu(1).nonzero().T
    chosen = free[:, torch.randperm(free.shape[1], generator=generator)[:240]]
    return chosen[:, 40:], chosen[:, :40]


def dense(edges: torch.Tensor) -> torch.Tensor:
    """Return the matrix of a graph."""
    matrix = torch.eye(NODES)
    matrix[edges[0], edges[1]] = matrix[edges[1], edges[0]] = 0.5
    return matrix


def by_index_add(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Add up what neighbours send."""
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


def by_scatter(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Add up the same by an index for each number."""
    sent = x.index_select(0, edges[0])
    return torch.zeros_like(x).scatter_add(0, edges[1][:, None].expand_as(sent), sent)


PASSES = {
    "dense": lambda edges, x: dense(edges) @ x,
    "sparse": lambda edges, x: torch.sparse.mm(dense(edges).to_sparse(), x),
    "rows": lambda edges, x: dense(edges).to_sparse_csr() @ x,
    "index_add": by_index_add,
    "scatter_add": by_scatter,
}


def found(send, passed: torch.Tensor, **named) -> list[tuple[str, float, float]]:
    """Train with messages along some edges, with variables of such names; return what is told."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    val_pos, val_neg = named.get("val_pos"), named.get("val_neg")
    edges_to_check, test_edges = named.get("edges_to_check"), named.get("test_edges")
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            send(passed, layer(torch.randn(NODES, 8))).square().mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    del val_pos, val_neg, edges_to_check, test_edges
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "edges passed"]
    return [(probe.label, probe.measured, probe.reference) for probe in probes]


def purchases(*, known: bool, own: bool, loops: bool = True) -> list[tuple[str, float, float]]:
    """
    Learn from purchases of 25 users, by whom and of what, and return what is told of the others.

    known: whether messages go along the others too. own: whether items have numbers of their own.
    """
    generator = torch.Generator().manual_seed(0)
    every = torch.ones(25, NODES - 25).nonzero()[torch.randperm(875, generator=generator)].T
    pairs, (users, others) = every[:, :200], every[:, 200:264]
    passed, test_pairs = pairs if known else pairs[:, :160], pairs[:, 160:] + 0
    passed = passed + torch.tensor([[0], [25]])
    test_pairs = test_pairs if own else test_pairs + torch.tensor([[0], [25]])
    matrix = dense(passed) if loops else dense(passed) - torch.eye(NODES)
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            made = matrix @ layer(torch.randn(NODES, 8))
            (made[users] * made[25:][others]).sum(1).exp().mean().backward()
            optimizer.step()
    del test_pairs
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "edges passed"]
    return [(probe.label, probe.measured, probe.reference) for probe in probes]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_items_with_numbers_of_their_own(own: bool, loops: bool) -> None:
    """A graph of two kinds has the users first, and the items behind them."""
    assert purchases(known=True, own=own, loops=loops) == [("test_pairs", 40.0, 40.0)]
    assert purchases(known=False, own=own, loops=loops) == [("test_pairs", 0.0, 40.0)]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", PASSES)
def test_edges_held_out(name: str) -> None:
    """In the graph or not, however messages are sent."""
    train, held = split()
    negatives = torch.randint(NODES, held.shape)
    both = torch.cat([train, held], dim=1)
    assert found(PASSES[name], both, val_pos=held, val_neg=negatives) == [("val_pos", 40, 40)]
    assert found(PASSES[name], train, val_pos=held, val_neg=negatives) == [("val_pos", 0, 40)]


def test_names_and_shapes() -> None:
    """Pairs (E, 2), arrays, the other direction; edges alone are named by no contrast."""
    train, held = split()
    both = torch.cat([train, held], dim=1)
    send = PASSES["dense"]
    assert found(send, both, val_pos=held.T) == [("val_pos", 40, 40)]
    assert found(send, both, val_pos=held.flip(0).numpy()) == [("val_pos", 40, 40)]
    assert found(send, both, test_edges=held) == []
    assert found(send, both, test_edges=held, val_neg=held) == [("test_edges", 40, 40)]
    assert found(send, both, edges_to_check=held, val_neg=held) == []
    held.resize_(2, 400)  # what was read stays the user's to resize


def test_what_are_no_edges() -> None:
    """Numbers of other nodes, few of them, fractions; a graph in which most pairs are edges."""
    train, held = split()
    both = torch.cat([train, held], dim=1)
    send = PASSES["dense"]
    for pairs in (held + NODES, held[:, :20], held.float(), held[0], np.zeros((2, 50))):
        assert found(send, both, val_pos=pairs) == []
    full = torch.ones(NODES, NODES).nonzero().T
    assert found(send, full, val_pos=held) == []


def scored(pairs: torch.Tensor, negatives: torch.Tensor, passed: torch.Tensor) -> list[str]:
    """Train to tell pairs from others, with edges held out in a dictionary; say what is told."""
    torch.manual_seed(0)
    _, held = split()
    splits = {"train": pairs, "val": held}
    layer = nn.Linear(8, 4)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for _ in range(3):
            rows = by_index_add(passed, layer(torch.randn(NODES, 8)))
            alike = (rows[pairs[0]] * rows[pairs[1]]).sum(1)
            others = (rows[negatives[0]] * rows[negatives[1]]).sum(1)
            optimizer.zero_grad()
            (
                nn.functional.softplus(-alike).mean() + nn.functional.softplus(others).mean()
            ).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    del splits
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "edges passed"]
    return [f"{probe.label} {probe.measured:.0f} of {probe.reference:.0f}" for probe in probes]


@SHAPES
def test_pairs_without_an_edge_that_are_scored() -> None:
    """They tell that edges are to be predicted, whatever they are called."""
    train, held = split()
    both = torch.cat([train, held], dim=1)
    free = torch.ones(NODES, NODES).triu(1)
    free[both[0], both[1]] = 0
    negatives = free.nonzero().T[:, :200]
    assert scored(train, negatives, both) == ["splits['val'] 40 of 40"]
    assert scored(train, negatives, train) == ["splits['val'] 0 of 40"]
    assert scored(train, both[:, :100], both) == []
