"""Models that are evaluated at the end in an earlier state."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations.restored_states import _EvaluatedState, _measure

KINDS = ("numbers", "classes", "bits", "words")


def targets_of(kind: str, rows: torch.Tensor) -> torch.Tensor:
    """Return what is to be learned of rows."""
    total = rows[..., :2].sum(-1)
    if kind == "numbers":
        return total[:, None]
    return (total > 0).float()[:, None] if kind == "bits" else (total > 0).long()


def lose(kind: str, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the loss."""
    if kind == "numbers":
        return F.mse_loss(scores, target)
    if kind == "bits":
        return F.binary_cross_entropy_with_logits(scores, target)
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def end(
    kind: str = "numbers",
    *,
    served: bool = True,
    epochs: int = 6,
    choose: Callable[[int], bool] = lambda epoch: epoch == 0,
    after: str = "",
    rate: float = 0.05,
    at_first: bool = False,
) -> tuple[list[Probe], bool]:
    """Train, evaluate after each epoch, and go back to a state; return what was seen."""
    torch.manual_seed(0)
    shape = (96, 5, 6) if kind == "words" else (96, 6)
    rows, held, last = torch.randn(*shape), torch.randn(*shape), torch.randn(*shape)
    model = nn.Linear(6, 1 if kind in ("numbers", "bits") else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def evaluate(data: torch.Tensor, part: int = 96) -> None:
        """Evaluate on some rows."""
        with torch.no_grad():
            if served:
                pairs: Any = DataLoader(TensorDataset(data, targets_of(kind, data)), 32)
            else:
                pairs = [(data[:part], targets_of(kind, data[:part]))]
            for few, target in pairs:
                scores = model(few)
                if not served:
                    lose(kind, scores, target)

    states: list[Any] = []
    with Recorder("x") as recorder:
        if at_first:
            evaluate(held)
            states.append(copy.deepcopy(model.state_dict()))
        for epoch in range(epochs):
            for _ in range(6):
                optimizer.zero_grad()
                lose(kind, model(rows), targets_of(kind, rows)).backward()
                optimizer.step()
            evaluate(held, 96 - epoch if after == "other samples" else 96)
            states += [copy.deepcopy(model.state_dict())] if choose(epoch) else []
        for state in states:
            model.load_state_dict(state)
            evaluate(last)
        if after == "training":
            lose(kind, model(rows), targets_of(kind, rows)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "worst state"]
    return found, "worst state" in str(recorder.trace.conditions["looked"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("served", [True, False])
def test_the_worst_state_is_told(kind: str, served: bool) -> None:
    """With its step, both mean errors, and of how many it is the worst."""
    (probe,), looked = end(kind, served=served)
    assert looked
    assert probe.step == 6
    assert probe.label == "Linear, of 6"
    assert probe.measured > 1.1 * probe.reference > 0


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_state_is_left_alone(epoch: int) -> None:
    """One that is not the best may have been chosen by anything else."""
    assert end(choose=lambda one: one == epoch) == ([], True)


def test_of_three_evaluations_one_is_the_worst_by_chance() -> None:
    """The fourth makes it known."""
    assert end(epochs=3) == ([], False)
    assert len(end(epochs=4)[0]) == 1


def test_evaluations_that_are_alike_say_nothing() -> None:
    """At a rate that changes the error by less than a tenth."""
    assert end(rate=1e-4) == ([], True)


def test_the_begin_is_no_choice() -> None:
    """A model is held against what it was before the training."""
    assert end(at_first=True, choose=lambda _: False) == ([], False)


def test_the_last_state_of_a_first_model_is_no_choice() -> None:
    """Though it is its worst, and looked at again when another model has been trained."""
    torch.manual_seed(0)
    rows, held = torch.randn(96, 6), torch.randn(96, 6)
    first, second = nn.Linear(6, 1), nn.Linear(6, 1)

    def fit(model: nn.Module, rate: float) -> None:
        """Train a model, and evaluate it six times."""
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(6):
            optimizer.zero_grad()
            loss = lose("numbers", model(rows), targets_of("numbers", rows))
            (loss if model is second else -loss).backward()
            optimizer.step()
            evaluate(model)

    def evaluate(model: nn.Module) -> None:
        """Evaluate a model on what is held out."""
        with torch.no_grad():
            lose("numbers", model(held), targets_of("numbers", held))

    with Recorder("x") as recorder:
        fit(first, 0.1)
        fit(second, 0.1)
        evaluate(first)
    assert "faults" not in recorder.trace.conditions
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "worst state"]


@pytest.mark.parametrize(
    ("passes", "times", "worse"),
    [
        ([(3.0, 5.0, 2)], 1.0, True),
        ([(1.0, 5.0, 2)], 1.0, False),
        ([(3.0, 3.0, 2)], 1.0, False),
        ([(3.0, 5.0, 2)], 2.0, False),
        ([(9.0, 9.0, 2)], 2.0, True),
    ],
)
def test_worse_is_worse_by_both_errors(passes: Any, times: float, worse: bool) -> None:
    """In each pass, and so many times."""
    own = _EvaluatedState(1, "Net", "", passes)
    assert own.is_worse_than(_EvaluatedState(2, "Net", "", [(2.0, 4.0, 2)]), times) is worse


def test_batches_of_one_loader_are_one_pass() -> None:
    """And others are each by itself, the first few."""
    own = _EvaluatedState(1, "Net", "")
    for turn in (3, 3, 4, -1, -1):
        own.add((1.0, 2.0, 8), turn)
    assert own.passes == [(2.0, 4.0, 16), *[(1.0, 2.0, 8)] * 3]
    for _ in range(99):
        own.add((1.0, 2.0, 8), -1)
    assert len(own.passes) == 64


@pytest.mark.parametrize("after", ["training", "other samples"])
def test_what_is_no_choice_says_nothing(after: str) -> None:
    """As a training that goes on, or evaluations of other samples each time."""
    assert end(after=after, served=False) == ([], False)


def test_states_that_are_compared_are_no_choice() -> None:
    """Each is loaded and measured."""
    assert end(choose=lambda epoch: epoch in (0, 4)) == ([], False)


def test_what_one_model_was_says_nothing_of_another() -> None:
    """Nor does the end of a training that nothing goes back from."""
    assert end(choose=lambda _: False) == ([], False)


@pytest.mark.parametrize(
    ("scores", "target", "errors"),
    [
        (torch.tensor([1.0, 4.0]), torch.tensor([2.0, 2.0]), (3.0, 5.0, 2)),
        (torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]), (3.0, 5.0, 2)),
        (torch.tensor([0.2, 0.9]), torch.tensor([1.0, 1.0]), (1.0, 0.9, 2)),
        (torch.tensor([-50.0, 50.0]), torch.tensor([True, True]), (1.0, 50.0, 2)),
        (torch.tensor([[9.0, 9.0], [0.0, 40.0]]), torch.tensor([-100, 0]), (1.0, 40.0, 1)),
        (torch.tensor([[0.0, 40.0]]), torch.tensor([-1]), None),
        (torch.tensor([[0.0, 40.0]]), torch.tensor([0.5]), None),
        (torch.ones(2, 3), torch.ones(3, 2), None),
        (torch.ones(()), torch.ones(()), None),
        (torch.ones(2), torch.ones(2) * 1j, None),
        (torch.ones(2), torch.ones(2).to("meta"), None),
        ([1.0], torch.ones(1), None),
    ],
)
def test_errors_are_of_numbers_of_bits_or_of_classes(
    scores: Any, target: torch.Tensor, errors: tuple[float, ...] | None
) -> None:
    """Two of each, and of how many; those that are ignored are left out."""
    assert _measure(scores, target) == (None if errors is None else pytest.approx(errors))
