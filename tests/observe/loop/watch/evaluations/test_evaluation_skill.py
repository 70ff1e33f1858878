"""What the recorder sees of how right a model is in evaluation."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.fit import Skill
from trainguard.observe.loop.recorder import Recorder

INPUTS, CLASSES = torch.eye(4).repeat(25, 1), torch.arange(4).repeat(25)


def skills_of(evaluate) -> list[Skill]:
    """Record one step of training, and evaluations of a model that is right for three classes."""
    model = nn.Linear(4, 4, bias=False)
    model.weight.data = torch.eye(4) * torch.tensor([1.0, 1.0, 1.0, -1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Recorder("x") as recorder:
        F.cross_entropy(model(INPUTS), CLASSES).backward()
        optimizer.step()
        evaluate(model)
    return [event for event in recorder.trace if isinstance(event, Skill)]


def with_loss(model: nn.Module) -> None:
    """Evaluate with a loss function, in two batches."""
    with torch.no_grad():
        for part in (slice(60), slice(60, None)):
            F.cross_entropy(model(INPUTS[part]), CLASSES[part])


def with_loader(model: nn.Module) -> None:
    """Evaluate what a loader serves, without a loss function."""
    with torch.no_grad():
        for inputs, _ in DataLoader(TensorDataset(INPUTS, CLASSES), batch_size=30):
            model(inputs)


def test_the_classes_of_a_loss_function() -> None:
    """The batches of one evaluation are added up."""
    (skill,) = skills_of(with_loss)
    assert (skill.step, skill.rows, skill.right, skill.commonest) == (1, 100, 75, 25)
    assert "test_evaluation_skill.py" in skill.source
    assert skill.recall == pytest.approx(0.5)  # three classes of four, where chance has one
    assert skill.spread == pytest.approx((4 * 0.25 * 0.75 / 25) ** 0.5 / 4)


def test_the_classes_that_a_loader_served() -> None:
    """No loss function is needed where inputs come with their classes."""
    (skill,) = skills_of(with_loader)
    assert (skill.rows, skill.right) == (100, 75)


def test_the_latest_evaluation_is_kept() -> None:
    """Each place tells of its last evaluation alone; what learns is none."""
    assert skills_of(lambda model: F.cross_entropy(model(INPUTS), CLASSES)) == []
    assert [s.rows for s in skills_of(lambda m: (with_loss(m), with_loader(m)))] == [100, 100]


def test_heads_with_other_classes() -> None:
    """Each number of classes at one place has an evaluation of its own."""

    def by_turns(model: nn.Module) -> None:
        """Name four classes, and two of them."""
        with torch.no_grad():
            for classes in (4, 2):
                own = classes > CLASSES
                F.cross_entropy(model(INPUTS)[own, :classes], CLASSES[own])

    assert [s.rows for s in skills_of(by_turns)] == [100, 50]
