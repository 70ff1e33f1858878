"""Functional training: steps along gradients of `torch.func`, without an optimizer."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F

import trainguard as tg
from trainguard.events.loop import Step

STEPS = 70  # more than are watched one by one


def net() -> nn.Module:
    """Return a small network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs, and targets that they tell."""
    x = torch.randn(8, 3)
    return x, x.sum(1, keepdim=True)


def train(way: str, steps: int = STEPS) -> list[torch.Tensor]:
    """Train without an optimizer, in one of several ways; return the parameters."""
    model = net()
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    kept = dict(model.named_parameters()) if way == "written to" else own

    def loss(params, x, y):
        """Return the loss of a call with these parameters."""
        return F.mse_loss(functional_call(model, params, (x,)), y)

    for _ in range(steps):
        x, y = batch()
        if way == "autograd":
            kept = {name: p.detach().requires_grad_() for name, p in kept.items()}
            slopes = torch.autograd.grad(loss(kept, x, y), [*kept.values()])
            gradients = dict(zip(kept, slopes, strict=True))
        elif way == "of samples":
            gradients = vmap(grad(loss), in_dims=(None, 0, 0))(kept, x, y)
            gradients = {name: g.mean(0) for name, g in gradients.items()}
        else:
            gradients, _ = grad_and_value(loss)(kept, x, y)
        if way == "written to":
            with torch.no_grad():
                for name, p in kept.items():
                    p -= 0.05 * gradients[name]
        else:
            kept = {name: p - 0.05 * gradients[name] for name, p in kept.items()}
    return [p.detach() for p in kept.values()]


@pytest.mark.parametrize("way", ["replaced", "written to", "of samples", "autograd"])
def test_steps_are_counted(way: str) -> None:
    """Each but a last one that replaces what nobody asks for again; it computes what it would."""
    alone = train(way)
    with tg.record(probe=False) as run:
        watched = train(way)
    assert all(map(torch.equal, alone, watched))
    steps = [event for event in run.trace.events if isinstance(event, Step)]
    assert run.trace.conditions["steps"] == STEPS - (way != "written to")
    assert "blind" not in run.trace.conditions
    assert steps[0].norm > 0
    assert steps[0].loss > steps[-1].loss


def test_gradients_of_something_else_are_no_steps() -> None:
    """Those of inputs, of functions without a module, and of the same parameters again."""
    model = net()
    kept = {name: p.detach() for name, p in model.named_parameters()}
    with tg.record(probe=False) as run:
        for _ in range(5):
            x, y = batch()
            grad(lambda x, y: F.mse_loss(functional_call(model, kept, (x,)), y))(x, y)
            grad(lambda x: x.square().sum())(x)
            grad(lambda p, x: functional_call(model, p, (x,)).sum())(kept, x)
    assert run.trace.conditions["steps"] == 0


def test_an_optimizer_of_an_earlier_training() -> None:
    """What is left in memory does not make the steps of this one."""
    left = nn.Linear(9, 9)
    optimizer = torch.optim.SGD(left.parameters(), 0.05)
    model = net()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with tg.record(probe=False) as run:
        for _ in range(4):
            x, y = batch()
            slopes = grad(lambda p, x, y: F.mse_loss(functional_call(model, p, (x,)), y))(
                parameters, x, y
            )
            parameters = {name: p - 0.05 * slopes[name] for name, p in parameters.items()}
    assert optimizer.param_groups
    assert run.trace.conditions["steps"] == 3  # the last one is not asked for again


def test_an_optimizer_makes_the_steps() -> None:
    """Where there is one, gradients by `torch.func` are not counted beside its steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with tg.record(probe=False) as run:
        for _ in range(5):
            kept = {name: p.detach() for name, p in model.named_parameters()}
            x, y = batch()
            gradients = grad(lambda p, x, y: F.mse_loss(functional_call(model, p, (x,)), y))(
                kept, x, y
            )
            for name, p in model.named_parameters():
                p.grad = gradients[name]
            optimizer.step()
    assert run.trace.conditions["steps"] == 5
