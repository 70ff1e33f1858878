"""Samples of an evaluation that are learned from, whatever an augmentation makes of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from trainguard.events.probe import Probe
from trainguard.events.ranks import SplitSamples
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import shared_indices

INPUTS, CLASSES = torch.randn(120, 6), torch.arange(120) % 2


class Noisy(Dataset):
    """Samples with noise, some of a table or all of it."""

    def __init__(self, indices: Sequence[int] | None = None, *, shared: bool = True) -> None:
        self.inputs = INPUTS if shared else INPUTS.clone()
        self.classes = CLASSES if shared else CLASSES.clone()
        if indices is not None:
            self.indices = list(indices)

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(getattr(self, "indices", self.inputs))

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a sample, and its class."""
        row = getattr(self, "indices", range(len(self.inputs)))[place]
        return self.inputs[row] + 0.1 * torch.randn(6), self.classes[row]


class Drawn(Dataset):
    """Samples that are made when they are asked for."""

    def __len__(self) -> int:
        """Return how many samples there are."""
        return 120

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a sample, and its class."""
        return torch.randn(6), torch.tensor(place % 2)


class Wrapped(Dataset):
    """What another data set serves, turned round."""

    def __init__(self, inner: Dataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.inner)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a sample, and its class."""
        inputs, kind = self.inner[place]
        return inputs.flip(0), kind


def shuffled(data: Dataset, **more: object) -> DataLoader:
    """Return a loader for training."""
    return DataLoader(data, 20, shuffle=True, **more)


def evaluate(model: nn.Module, loader: DataLoader, *, gradients: bool = False) -> None:
    """Ask for the accuracy of some samples."""
    with torch.set_grad_enabled(gradients):
        for inputs, classes in loader:
            (model(inputs).argmax(1) == classes).float().mean().item()


class Seen(NamedTuple):
    """What a recording has seen: known and all samples, whether any were, and what ranks tell."""

    overlaps: list[tuple[float, float]]
    looked: bool
    splits: list[SplitSamples]


def record(
    train: DataLoader | Sequence[DataLoader],
    *evaluations: DataLoader,
    fresh: bool = False,
    peek: str = "",
    before: DataLoader | None = None,
    with_graph: DataLoader | None = None,
    other: DataLoader | None = None,
) -> Seen:
    """Train and evaluate for two epochs, and return what was seen."""
    torch.manual_seed(0)
    trains = [train, train] if isinstance(train, DataLoader) else train
    with Recorder("x") as recorder:
        model = nn.Linear(6, 2)
        copy = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for loader in trains:
            if fresh:
                model = nn.Linear(6, 2)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            if before is not None:
                evaluate(model, before)
            for inputs, classes in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), classes).backward()
                optimizer.step()
                if peek:
                    evaluate({"model": model, "copy": copy}[peek], [(inputs, classes)])
            for evaluation in evaluations:
                evaluate(model, evaluation)
            if other is not None:
                evaluate(copy, other)
            if with_graph is not None:
                evaluate(model, with_graph, gradients=True)
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "shared indices"]
    seen = "shared indices" in recorder.trace.conditions["looked"]
    splits = [event for event in recorder.trace if isinstance(event, SplitSamples)]
    return Seen([(probe.measured, probe.reference) for probe in probes], seen, splits)


def found(*loaders: Any, **more: Any) -> tuple[list[tuple[float, float]], bool]:
    """Return what was seen by one process alone."""
    return record(*loaders, **more)[:2]


DATA = Noisy()
FIRST, OVERLAPPING = Subset(DATA, range(80)), Subset(DATA, range(60, 120))
HELD_OUT = DataLoader(Subset(DATA, range(80, 120)), 20)


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [
        (shuffled(FIRST), DataLoader(OVERLAPPING, 20)),
        (shuffled(Wrapped(FIRST)), DataLoader(Wrapped(OVERLAPPING), 20)),
        (shuffled(Wrapped(Wrapped(FIRST))), DataLoader(OVERLAPPING, 20)),
        (shuffled(Subset(Subset(DATA, range(90)), range(80))), DataLoader(OVERLAPPING, 20)),
        (
            DataLoader(DATA, 20, sampler=SubsetRandomSampler(range(80))),
            DataLoader(DATA, 20, sampler=SubsetRandomSampler(range(60, 120))),
        ),
        (shuffled(Noisy(range(80))), DataLoader(Noisy(range(60, 120)), 20)),
        (shuffled(Subset(Noisy(), range(80))), DataLoader(Noisy(range(60, 120)), 20)),
        (
            shuffled(Subset(TensorDataset(INPUTS, CLASSES), range(80))),
            DataLoader(Subset(TensorDataset(INPUTS, CLASSES), range(60, 120)), 20),
        ),
    ],
)
def test_samples_that_are_in_both(train: DataLoader, evaluation: DataLoader) -> None:
    """However the data set is divided, and whatever it is inside of."""
    assert found(train, evaluation) == ([(20, 60)], True)
    assert found(train, evaluation, HELD_OUT, fresh=True) == ([(20, 60)], True)


def test_an_evaluation_that_is_a_part_of_the_training() -> None:
    """Unless something else is evaluated, too, which may be what is held out."""
    part = DataLoader(Subset(DATA, range(30)), 20)
    assert found(shuffled(DATA), part) == ([(30, 30)], True)
    assert found(shuffled(FIRST), part, HELD_OUT) == ([], True)
    assert found(shuffled(FIRST), part, other=HELD_OUT) == ([], True)
    assert found(shuffled(FIRST), part, other=part) == ([(30, 30)], True)
    assert found(shuffled(FIRST), part, peek="model") == ([], True)
    assert found(shuffled(FIRST), part, peek="copy") == ([(30, 30)], True)
    assert found(shuffled(FIRST), part, DataLoader(HELD_OUT.dataset, 20, sampler=[0, 1])) == (
        [],
        True,
    )


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [
        (shuffled(FIRST), HELD_OUT),
        (shuffled(DATA), DataLoader(DATA, 20)),
        (shuffled(FIRST), DataLoader(DATA, 20)),
        (shuffled(Noisy()), DataLoader(Subset(Noisy(), range(30)), 20)),
        (shuffled(FIRST), DataLoader(Subset(Noisy(shared=False), range(60, 120)), 20)),
    ],
)
def test_samples_that_may_be_evaluated(train: DataLoader, evaluation: DataLoader) -> None:
    """Others; all of them; those of one role in another; and what was copied."""
    assert found(train, evaluation) == ([], True)


def test_evaluations_that_are_not_the_modules_own() -> None:
    """Those of another one, and those that may learn, are left out."""
    other = DataLoader(OVERLAPPING, 20)
    assert found(shuffled(FIRST), other=other) == ([], True)
    assert found(shuffled(FIRST), other, with_graph=HELD_OUT) == ([(20, 60)], True)


def test_data_sets_that_are_gone_in_the_end() -> None:
    """They were told apart as long as they were there."""
    train = [shuffled(Noisy(range(80)))]
    assert found(train, DataLoader(Noisy(range(60, 120)), 20)) == ([(20, 60)], True)
    train.clear()
    assert found([shuffled(Noisy(range(80)))], HELD_OUT) == ([], True)


def test_folds() -> None:
    """Each has a model of its own, or tells nothing."""
    halves = [Subset(DATA, range(60)), Subset(DATA, range(60, 120))]
    trains = [shuffled(half) for half in halves]
    every = DataLoader(Subset(DATA, range(30, 90)), 20)
    assert found(trains, DataLoader(halves[1], 20)) == ([], False)
    assert found(trains, every, fresh=True) == ([(30, 60)], True)
    assert found(trains, fresh=True, before=every) == ([], True)
    again = [shuffled(DATA), shuffled(Noisy(shared=False))]
    assert found(again, DataLoader(Subset(DATA, range(30)), 20)) == ([], False)


def test_a_run_of_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the first ones is told."""
    monkeypatch.setattr(shared_indices, "_PASSES", 2)
    many = [shuffled(FIRST)] * 3
    assert found(many, DataLoader(OVERLAPPING, 20)) == ([(20, 60)], True)
    monkeypatch.setattr(shared_indices, "_INDICES", 139)
    assert found(many, DataLoader(OVERLAPPING, 20)) == ([], False)


def test_what_nobody_can_tell() -> None:
    """Samplers of the user's, streams, and data sets that raise."""
    own = DataLoader(DATA, 20, sampler=list(range(80)))
    assert found(own, DataLoader(OVERLAPPING, 20)) == ([], False)
    assert found(shuffled(FIRST), DataLoader(DATA, 20, sampler=list(range(60, 120)))) == ([], False)


def test_one_of_several_processes_tells_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows of a table it learns from and evaluates; of other tables it tells nothing."""
    splits = record(shuffled(FIRST), HELD_OUT).splits
    assert splits == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    (split,) = record(shuffled(FIRST), HELD_OUT).splits
    assert (split.learned, split.evaluated) == ("1" * 80 + "0" * 40, "0" * 80 + "1" * 40)
    assert split.source.startswith(__file__)
    (other,) = record(shuffled(Subset(Noisy(shared=False), range(80)))).splits
    assert (other.data, other.learned) == (split.data, split.learned)
    assert other.evaluated == "0" * 120
    told = record(shuffled(FIRST), DataLoader(TensorDataset(INPUTS + 1, CLASSES), 20)).splits
    assert [("1" in each.learned, "1" in each.evaluated) for each in told] == [
        (True, False),
        (False, True),
    ]
    drawn = Drawn()
    untold = [Subset(drawn, range(80)), Subset(drawn, range(80, 120))]
    assert record(shuffled(untold[0]), DataLoader(untold[1], 20)).splits == []
