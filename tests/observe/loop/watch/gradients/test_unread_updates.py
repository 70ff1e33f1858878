"""Gradients with a graph that no loss is made of."""

from collections.abc import Callable

import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Outer = Callable[[nn.Linear, torch.Tensor, torch.Tensor, list[torch.Tensor]], torch.Tensor]


def probes(outer: Outer, steps: int = 6, named: bool = True) -> list[Probe]:
    """Train with an inner step of gradient descent, and return the probes about it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            x, y = torch.randn(8, 3), torch.randn(8, 1)
            own = list(model.parameters())
            inner = (model(x) - y).square().mean()
            grads = torch.autograd.grad(inner, own, create_graph=True)
            fast = [p - 0.1 * g for p, g in zip(own, grads, strict=True)] if named else []
            optimizer.zero_grad()
            outer(model, x, y, fast or list(grads)).backward()
            optimizer.step()
    assert "unread" in recorder.trace.conditions["looked"]
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread"]


def as_it_was(model: nn.Linear, x: torch.Tensor, y: torch.Tensor, _: object) -> torch.Tensor:
    """Return a loss of the parameters before they were moved."""
    return (model(x) - y).square().mean()


def test_what_was_moved_and_is_not_read_is_told_by_its_name() -> None:
    """It is, in each step that was looked at."""
    (probe,) = probes(as_it_was)
    assert (probe.measured, probe.reference, probe.label) == (4, 4, "fast")


def test_gradients_that_are_in_no_loss_are_told() -> None:
    """Without a name, where nothing was moved along them."""
    (probe,) = probes(as_it_was, named=False)
    assert (probe.measured, probe.label) == (4, "")


def test_what_a_loss_is_made_of_is_not() -> None:
    """Neither if it is a part of what was moved, or a penalty of the gradients."""
    assert probes(lambda m, x, y, fast: (x @ fast[0].T + fast[1] - y).square().mean()) == []
    assert probes(lambda m, x, y, fast: (x @ m.weight.T + fast[1] - y).square().mean()) == []
    assert probes(lambda m, x, y, g: m(x).mean() + g[0].square().sum(), named=False) == []


def test_what_is_used_now_and_then_is_not() -> None:
    """One step in which a loss has it is enough."""
    count = iter(range(9))

    def lazy(m: nn.Linear, x: torch.Tensor, y: torch.Tensor, g: list[torch.Tensor]) -> torch.Tensor:
        """Add a penalty in every fourth step."""
        penalty = g[0].square().sum() if next(count) % 4 == 0 else 0.0
        return (m(x) - y).square().mean() + penalty

    assert probes(lazy, named=False) == []


def test_what_is_written_into_the_parameters_is_not() -> None:
    """An extrapolated gradient is that at the moved parameters, which are put back."""

    def extrapolated(
        m: nn.Linear, x: torch.Tensor, y: torch.Tensor, fast: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the loss at what was moved."""
        own = [p.detach().clone() for p in m.parameters()]
        for p, moved in zip(m.parameters(), fast, strict=True):
            p.data.copy_(moved.detach())
        loss = (m(x) - y).square().mean()
        for p, before in zip(m.parameters(), own, strict=True):
            p.data = before
        return loss

    assert probes(extrapolated) == []


def test_outputs_that_can_be_read_once_are_left_to_torch() -> None:
    """A generator of them is as full as it was when the gradients are computed."""

    def penalised(
        m: nn.Linear, x: torch.Tensor, y: torch.Tensor, g: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return a loss with a gradient of what a generator gives."""
        (own,) = torch.autograd.grad((each for each in [m(x).sum()]), (m.weight,))
        return (m(x) - y).square().mean() + own.sum() + g[0].square().sum()

    assert probes(penalised, named=False) == []


def moved_twice(reads: bool, steps: int = 6) -> list[Probe]:
    """Take two inner steps, the second of what the first has moved; return what is told."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            x, y = torch.randn(8, 3), torch.randn(8, 1)
            own = list(model.parameters())
            fast = own
            for _ in range(2):
                inner = (x @ fast[0].T + fast[1] - y).square().mean()
                grads = torch.autograd.grad(inner, fast, create_graph=True)
                fast = [p - 0.1 * g for p, g in zip(fast, grads, strict=True)]
            weights = fast if reads else own
            optimizer.zero_grad()
            (x @ weights[0].T + weights[1] - y).square().mean().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread"]


def test_several_inner_steps() -> None:
    """A gradient that only another one is made of is in no loss; with the last one, all are."""
    (probe,) = moved_twice(reads=False)
    assert (probe.measured, probe.label) == (3, "fast")  # not the first, of an unknown optimizer
    assert moved_twice(reads=True) == []
