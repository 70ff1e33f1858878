"""Lines that look at gradients for another reason than to measure them."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from tests.observe.loop.watch.gradients.readers import reads
from trainguard.events.loop import Read
from trainguard.observe.loop.recorder import Recorder


def clear(model: nn.Module) -> None:
    """Clear the gradients by hand."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.detach_()
            parameter.grad.zero_()


def drop(model: nn.Module) -> None:
    """Drop the gradients by hand."""
    for p in model.parameters():
        if p.grad is not None:
            # A comment, as people write them.
            p.grad = None
        if p.grad is None:
            del p.grad
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    assert not any(p.grad is None for p in model.parameters())
    model.zero_grad()


def add(model: nn.Module) -> None:
    """Add to what is there, or to what was cleared."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad += torch.ones_like(p)
            p.grad -= torch.ones_like(p)
            p.grad.add_(torch.ones_like(p))
            p.grad.data.sub_(torch.ones_like(p))


def zero_grad(model: nn.Module) -> None:
    """Clear the gradients in a function of that name."""
    for p in model.parameters():
        gradient = p.grad
        if gradient is not None:
            gradient.mul_(0)


def copied(model: nn.Module) -> None:
    """Do with the model what reads gradients inside torch."""
    copy.deepcopy(model)
    model.to(torch.float32).zero_grad()
    torch.save(model, io.BytesIO())
    assert "Linear" in repr(model)


@pytest.mark.parametrize("again", [clear, drop, add, zero_grad, copied], ids=lambda f: f.__name__)
@pytest.mark.parametrize("none", [True, False], ids=["none", "zeros"])
def test_clearing_again_is_no_reading(again, none) -> None:
    """Lines that look at gradients in order to clear them, or to copy a model, measure nothing."""
    assert reads(after=again, none=none) == {}


class Own(torch.optim.Optimizer):
    """An optimizer of the user's, which reads gradients in Python."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Step, twice over, and clear in between as some do."""
        for _ in range(2):
            for p in self.param_groups[0]["params"]:
                if p.grad is None:
                    continue
                p -= 0.01 * p.grad


def test_optimizers_read_for_a_purpose() -> None:
    """An optimizer's own look at the gradients is none of the user's lines."""

    def train() -> None:
        """Step once more than there are gradients."""
        model = network()
        optimizer = Own(model.parameters())
        for inputs, target in batches(6):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()

    with Recorder("x") as recorder:
        train()
    assert not [e for e in recorder.trace if isinstance(e, Read) and e.empty]
