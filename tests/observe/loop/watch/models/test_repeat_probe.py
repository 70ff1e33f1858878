"""Evaluations that give another output each time."""

import inspect
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

SCORES = torch.arange(3)


class Net(nn.Module):
    """A classifier with something in the middle of it."""

    def __init__(self, middle, classify: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(0.5)
        self.middle, self.classify = middle, classify

    def forward(self, inputs: torch.Tensor, classes: torch.Tensor | None = None):
        """Return the scores, or the loss with them."""
        scores = self.last(self.middle(self, self.first(inputs)))
        return scores if classes is None else (F.cross_entropy(scores, classes), scores)


def dropped(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Drop elements whatever the mode is."""
    return F.dropout(hidden, 0.5)


def attended(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Attend, and drop some of it whatever the mode is."""
    rows = hidden[:, None].repeat(1, 3, 1) + SCORES[:, None]
    return F.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.3).mean(1)


SOUND = {
    "module": lambda net, hidden: net.drop(hidden),
    "mode": lambda net, hidden: F.dropout(hidden, 0.5, net.training),
    "none": lambda net, hidden: F.dropout(hidden, 0.0),
    "sampled": lambda net, hidden: hidden + torch.randn_like(hidden),
    "sampled and dropped": lambda net, hidden: dropped(net, hidden) + torch.randn_like(hidden),
    "plain": lambda net, hidden: hidden,
}


def train(middle, evaluate, steps: int = 3) -> nn.Module:
    """Train, and evaluate after each step."""
    torch.manual_seed(0)
    model = Net(middle)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        inputs, classes = torch.randn(16, 4), torch.randint(3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
        with torch.no_grad():
            evaluate(model.eval(), inputs, classes)
        model.train()
    return model


def measured(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Compute the loss of one pass, and again of another."""
    for _ in range(2):
        F.cross_entropy(model(inputs), classes)


def inside(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Let the model compute its loss, as many language models do."""
    model(inputs, classes=classes)


def averaged(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Average over several passes, whose dropout is meant; and measure more than one thing."""
    mean = torch.stack([model(inputs) for _ in range(5)]).mean(0)
    F.cross_entropy(mean, classes)
    F.nll_loss(mean.log_softmax(1), classes)


def in_parts(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Compute the loss of all outputs, which are made part by part."""
    F.cross_entropy(torch.cat([model(part) for part in inputs.split(4)]), classes)


def counted(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Count what is right, and take no loss."""
    (model(inputs).argmax(1) == classes).float().mean()


def said(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Count what is right, take no loss, and say it."""
    print(f"val acc {(model(inputs).argmax(1) == classes).float().mean():.4f}")


def said_of_several(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Say what is right of an average."""
    found = sum(model(inputs).softmax(1) for _ in range(5))
    print(f"val acc {(found.argmax(1) == classes).float().mean():.4f}")


def drawn_at_once(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Average over several passes that are made in one batch."""
    F.cross_entropy(model(inputs.repeat(5, 1)).reshape(5, 16, 3).mean(0), classes)


def forgotten(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Forget the mode: another judge's business."""
    F.cross_entropy(model.train()(inputs), classes)


def told(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Say that elements are to be dropped, whatever the mode is."""
    return F.dropout(hidden, 0.5, training=True)


def probes(middle, evaluate=measured, *, probe: bool = True) -> list[Probe]:
    """Record a training and return its probes of this kind."""
    with Recorder("x", probe=probe) as recorder:
        train(middle, evaluate)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe.startswith("repeat")]


@pytest.mark.parametrize("evaluate", [measured, inside, in_parts, counted])
@pytest.mark.parametrize("middle", [dropped, attended])
def test_dropout_in_every_mode_is_told(middle, evaluate) -> None:
    """It is told once, with the line that drops, wherever a loss is computed, and without one."""
    (probe,) = probes(middle, evaluate)
    assert probe.measured > 1000 * probe.reference > 0
    lines, start = inspect.getsourcelines(middle)
    assert probe.source == f"{__file__}:{start + len(lines) - 1}"
    assert (probe.probe, probe.label, probe.step) == ("repeat", "Net", 1)


def test_dropout_that_is_asked_for_is_told_apart() -> None:
    """With training=True it may be meant: it is told as that where something is measured."""
    for evaluate in (measured, said):
        (probe,) = probes(told, evaluate)
        assert probe.probe == "repeat as told"
    assert probes(told, counted) == probes(told, said_of_several) == []


def by_python(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Turn samples by a number of Python's."""
    return hidden * random.random()


def by_numpy(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Turn samples by a number of numpy's."""
    return hidden * float(np.random.rand())


def by_torch(_net: Net, hidden: torch.Tensor) -> torch.Tensor:
    """Turn samples by a number of torch's."""
    return hidden * torch.rand(1).item()


@pytest.mark.parametrize("middle", [by_python, by_numpy, by_torch])
def test_chance_that_decides_is_told(middle) -> None:
    """One number for all samples is no noise of theirs: its line is told where a loss is taken."""
    (probe,) = probes(middle, measured)
    _, start = inspect.getsourcelines(middle)
    assert (probe.probe, probe.source) == ("repeat by chance", f"{__file__}:{start + 2}")
    assert probes(middle, counted) == probes(middle, averaged) == []


@pytest.mark.parametrize("name", SOUND)
def test_sound_evaluations_are_not(name: str) -> None:
    """Dropout that follows the mode is silent, and what samples on purpose is left alone."""
    assert probes(SOUND[name]) == []


@pytest.mark.parametrize("evaluate", [averaged, drawn_at_once, forgotten])
def test_averages_are_not(evaluate) -> None:
    """Averages over dropout and passes in training mode are silent."""
    assert probes(dropped, evaluate) == []


def test_probes_can_be_switched_off() -> None:
    """Without probes nothing is tried."""
    assert probes(dropped, probe=False) == []


@pytest.mark.parametrize("evaluate", [measured, inside, averaged])
def test_the_training_is_the_same_bit_for_bit(evaluate) -> None:
    """Parameters end where they would have, though random numbers were drawn on the copy."""
    alone = [p.clone() for p in train(dropped, evaluate).parameters()]
    with Recorder("x"):
        watched = list(train(dropped, evaluate).parameters())
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))


def test_streams_of_the_users_own_are_left_alone() -> None:
    """A pass that is made again moves no generator that only the script knows of."""
    stream = np.random.default_rng(0)

    class Noisy(nn.Module):
        """A module with noise from a generator of its file."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Return the output, louder or quieter."""
            return self.layer(inputs) * (1 + stream.random())

    def train() -> list[float]:
        """Train, evaluate after each step, and return the losses."""
        nonlocal stream
        stream = np.random.default_rng(0)
        torch.manual_seed(0)
        model, inputs, losses = Noisy(), torch.randn(8, 4), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            loss = F.mse_loss(model.train()(inputs), inputs[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                losses.append(F.mse_loss(model.eval()(inputs), inputs[:, :1]).item())
        return losses

    with Recorder("x"):
        watched = train()
    assert watched == train()
