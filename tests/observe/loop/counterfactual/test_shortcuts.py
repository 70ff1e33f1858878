"""The same step without its shortcuts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.torches import HAS_STANCES
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


class Halved(torch.autograd.Function):
    """Nothing at all, whose gradient in 16 bits is not that of nothing."""

    @staticmethod
    def forward(ctx, inputs):
        """Return it."""
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Turn the gradient round in 16 bits."""
        return -gradient if gradient.dtype == torch.bfloat16 else gradient


class Forgetful(torch.optim.SGD):
    """Steps that are half as large with `foreach`."""

    @torch.no_grad()
    def step(self, closure=None):
        """Make a step."""
        for group in self.param_groups:
            for parameter in group["params"] if group["foreach"] else ():
                parameter.grad *= 0.5
        return super().step(closure)


def ask(question, between=nn.Tanh, optimize=torch.optim.SGD, loss=F.cross_entropy, **options):
    """Record a training, and return the answers to a question."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(640, 6), (3 * torch.rand(640) ** 2).long())
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Linear(6, 32), between(), nn.Linear(32, 3))
        optimizer = optimize(model.parameters(), lr=0.1, **options)
        compiled = torch.compile(model, backend="eager") if question == "compile off" else model
        for number, (points, classes) in enumerate(DataLoader(data, 8, shuffle=True)):
            with torch.autocast("cpu", torch.bfloat16, enabled=question == "autocast off"):
                loss(compiled(points), classes).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return [event for event in asked if event.question == question]


class TurnedRound(nn.Module):
    """Calls the function whose gradient is wrong in 16 bits."""

    def forward(self, inputs):
        """Return the inputs, squashed."""
        return torch.tanh(Halved.apply(inputs))


@pytest.mark.parametrize(("between", "answers"), [(nn.Tanh, 1), (TurnedRound, 2)])
def test_autocast(between, answers) -> None:
    """A backward of its own for 16 bits is far from what rounding does, each time."""
    found = ask("autocast off", between)
    assert [event.measured > event.reference for event in found] == [answers > 1] * answers


class AsksTheCompiler(nn.Module):
    """Is another function where it is compiled."""

    def forward(self, inputs):
        """Return the inputs, squashed or not."""
        return inputs if torch.compiler.is_compiling() else torch.tanh(3 * inputs)


@pytest.mark.skipif(not HAS_STANCES, reason="this torch cannot run it uncompiled")
@pytest.mark.parametrize(("between", "answers"), [(nn.Tanh, 1), (AsksTheCompiler, 2)])
def test_compiled_steps(between, answers) -> None:
    """Code that asks whether it is compiled is another model."""
    found = ask("compile off", between)
    assert [event.measured > event.reference for event in found] == [answers > 1] * answers


@pytest.mark.parametrize(("optimize", "others"), [(torch.optim.SGD, 0.0), (Forgetful, 1.0)])
def test_fused_steps(optimize, others) -> None:
    """A branch for `foreach` that differs moves nearly every number otherwise."""
    (answer,) = ask("fused off", optimize=optimize, foreach=True)
    assert answer.measured >= 0.9 * others * answer.reference
    assert bool(answer.measured) == bool(others)


def test_a_step_without_shortcuts_is_not_asked_about_them() -> None:
    """Nothing is forked for what is not there."""
    assert ask("fused off") == []
