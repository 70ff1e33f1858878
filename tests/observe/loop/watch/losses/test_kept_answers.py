"""Targets that are answers of a model, and whether something in that was awake."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

CLASSES, ROWS = 6, 48


def network(classes: int = CLASSES) -> nn.Module:
    """Build a network with dropout."""
    layers = nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes)
    return nn.Sequential(*layers)


def learn(model, optimizer, loss) -> None:
    """Make a step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def distil(
    target_of=lambda answers: F.softmax(answers / 2, 1),
    loss_of=lambda out, target: F.kl_div(F.log_softmax(out, 1), target, reduction="batchmean"),
    *,
    awake: bool = True,
    classes: int = CLASSES,
    between=lambda teacher: None,
    teaches: bool = False,
    asks: bool = False,
    fresh: bool = False,
) -> tuple[list[Probe], bool]:
    """
    Train a teacher, keep its answers, and train a student with them.

    between: what happens to the teacher after that. teaches: whether it learns beside the student.
    asks: whether it is asked while it learns, too. fresh: whether it is in each step.
    """
    torch.manual_seed(0)
    inputs, labels = torch.randn(ROWS, 4), torch.randint(0, classes, (ROWS,))
    with Recorder("x") as recorder:
        teacher, student = network(classes), nn.Linear(4, classes)
        optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)
        for _ in range(4):
            learn(teacher, optimizer, F.cross_entropy(teacher(inputs), labels))
            if asks:
                with torch.no_grad():
                    teacher(inputs)
        teacher.train(awake)
        with torch.no_grad():
            targets = target_of(torch.cat([teacher(part) for part in inputs.split(16)]))
        between(teacher)
        other = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(4):
            for rows in torch.randperm(ROWS).split(16):
                if fresh:
                    with torch.no_grad():
                        targets = target_of(teacher(inputs))
                learn(student, other, loss_of(student(inputs[rows]), targets[rows]))
            if teaches:
                learn(teacher, optimizer, F.cross_entropy(teacher(inputs), labels))
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "kept answers"]
    return found, "kept answers" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize(
    ("target_of", "loss_of"),
    [
        (
            lambda answers: F.softmax(answers / 4, 1),
            lambda out, target: F.kl_div(F.log_softmax(out, 1), target, reduction="batchmean"),
        ),
        (lambda answers: answers.softmax(1), F.cross_entropy),
        (lambda answers: answers, F.mse_loss),
    ],
    ids=["divergence", "cross-entropy", "scores"],
)
def test_answers_with_dropout_are_told(target_of, loss_of) -> None:
    """As they are, or after a softmax, in whatever loss: with what was awake, and where."""
    ((probe,), looked) = distil(target_of, loss_of)
    assert probe.measured == probe.reference >= 9
    assert (probe.label, probe.step, looked) == ("Sequential.2", 4, True)
    assert probe.source.rpartition(":")[0] == __file__
    assert distil(target_of, loss_of, awake=False) == ([], False)


@pytest.mark.parametrize(
    "options",
    [
        {"target_of": lambda answers: answers.softmax(1) * 0.9 + 0.1 / CLASSES},
        {"target_of": lambda answers: torch.randn_like(answers).softmax(1)},
        {"target_of": lambda answers: (answers.softmax(1) + answers.roll(1, 0).softmax(1)) / 2},
    ],
    ids=["smoothed", "others", "mean"],
)
def test_other_targets(options) -> None:
    """Means of several answers, and what is no answer, were looked at."""
    assert distil(**options) == ([], True)


def test_answers_of_before_are_forgotten() -> None:
    """A model that has moved since is another one; what it answers now counts."""
    assert distil(asks=True)[0]


def test_answers_of_the_same_step_are_others_business() -> None:
    """What is asked in each step is known as a reference."""
    assert distil(fresh=True)[0] == []


def test_few_classes_are_alike_by_chance() -> None:
    """They are not looked at."""
    assert distil(classes=3) == ([], False)


def move(teacher: nn.Module) -> None:
    """Write to a parameter."""
    with torch.no_grad():
        teacher[0].weight.mul_(0.99)


def test_a_model_that_goes_on_learning_is_no_reference() -> None:
    """Its answers are of another one by then, as in temporal ensembles."""
    assert distil(between=move) == ([], False)
    found, _ = distil(teaches=True)
    assert all(probe.measured <= 3 for probe in found)
