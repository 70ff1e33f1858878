"""Norms of gradients that are asked for with their graph."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients.penalty_norms import PenaltyNorms


def penalties(penalise, steps: int = 4, ask=torch.sum) -> list[Probe]:
    """Train a net on a penalty on the gradients of eight inputs of (2, 3) numbers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with Recorder("x", probe=False) as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(steps):
            inputs = torch.randn(8, 2, 3, requires_grad=True)
            outputs = net(inputs)
            asked = outputs if ask is None else ask(outputs)
            ones = torch.ones_like(asked)
            (slopes,) = torch.autograd.grad(asked, inputs, ones, create_graph=True)
            optimizer.zero_grad()
            (outputs.mean() + penalise(slopes)).backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe.startswith("penalty")]


@pytest.mark.parametrize(
    ("penalise", "norms"),
    [
        (lambda g: (g.norm(2, dim=1) - 1).square().mean(), 24),
        (lambda g: (1 - g.norm(dim=2)).square().mean(), 16),
        (lambda g: ((g.pow(2).sum(1) + 1e-12).sqrt() - 1).square().mean(), 24),
        (lambda g: (torch.linalg.vector_norm(g.view(16, 3), dim=1) - 1).relu().mean(), 16),
    ],
)
@pytest.mark.parametrize("ask", [torch.sum, torch.mean, None])
def test_more_norms_than_outputs(penalise, norms, ask) -> None:
    """However the norm is written, and whether outputs or their sum are asked."""
    (probe,) = penalties(penalise, ask=ask)
    assert (probe.measured, probe.reference, probe.label) == (norms, 8, "(8, 2, 3)")
    assert "test_penalty_norms.py" in probe.source
    assert penalties(penalise, steps=2, ask=ask) == []


def test_another_thread() -> None:
    """Gradients that it asks for are none of the training's."""
    net, other = nn.Linear(2, 1), nn.Linear(2, 1)
    with Recorder("x", probe=False) as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

        def ask() -> None:
            """Ask for gradients with their graph."""
            inputs = torch.randn(8, 3, 2, requires_grad=True)
            torch.autograd.grad(other(inputs).sum(), inputs, create_graph=True)

        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(4, 2)).mean().backward()
            optimizer.step()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ask).result()
        assert "penalty" not in recorder.watcher(PenaltyNorms).looked


@pytest.mark.parametrize(
    "penalise",
    [
        lambda g: (g.flatten(1).norm(dim=1) - 1).square().mean(),
        lambda g: (g.norm() - 1).square(),
        lambda g: g.norm(dim=1).mean(),
        lambda g: g.square().sum((1, 2)).mean(),
        lambda g: (g.detach().norm(dim=1) - 1).square().mean(),
    ],
)
def test_as_many_norms_as_outputs(penalise) -> None:
    """One for each, or for all; and where norms are held to no number, or move nothing."""
    assert penalties(penalise) == []


@pytest.mark.parametrize(
    ("penalise", "norms"),
    [
        (lambda g: (g.flatten(1).norm(dim=1) - 1).square().mean(), 8),
        (lambda g: ((1 - (g.pow(2).sum((1, 2)) + 1e-12).sqrt()) ** 2).mean(), 8),
        (lambda g: (g.view(4, 12).norm(dim=1) - 1).square().mean(), 4),
    ],
)
def test_norms_of_the_gradient_of_a_mean(penalise, norms) -> None:
    """Each input has an eighth of its output's gradient; that of a sum has all of it."""
    (probe,) = penalties(penalise, ask=torch.mean)
    assert (probe.probe, probe.measured, probe.reference) == ("penalty of a mean", norms, 8)
    assert penalties(penalise, ask=torch.sum) == penalties(penalise, ask=None) == []
    assert penalties(penalise, ask=torch.mean, steps=2) == []


@pytest.mark.parametrize(
    "penalise",
    [
        lambda g: ((8 * g).flatten(1).norm(dim=1) - 1).square().mean(),
        lambda g: (g.flatten(1).norm(dim=1) - 1 / 8).square().mean(),
        lambda g: (g.norm() - 1).square(),
        lambda g: g.square().sum((1, 2)).mean(),
        lambda g: (g.flatten(1).norm(dim=1) * 8 - 1).square().mean(),
    ],
)
def test_a_mean_that_is_made_up_for(penalise) -> None:
    """The gradients are multiplied, held to a part of one, or to nothing, or taken together."""
    assert penalties(penalise, ask=torch.mean) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda out: out.mean() * len(out),
        lambda out: -out.sum() / 2,
        lambda out: out[:4].sum() + out[4:].sum(),
    ],
)
def test_sums_that_are_multiplied_or_parted(ask) -> None:
    """They are of eight outputs, or of nobody knows how many: never of one."""
    assert penalties(lambda g: (g.flatten(1).norm(dim=1) - 1).square().mean(), ask=ask) == []
