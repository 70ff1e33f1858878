"""How what was declared becomes the loaders of its splits."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.loader.splits import Loaders, keep_state, set_epoch

ROWS = TensorDataset(torch.arange(12.0).view(6, 2))


def loader(seed: int = 0) -> DataLoader:
    """Return a loader of three batches."""
    return DataLoader(ROWS, batch_size=2, shuffle=True)


def resolved(given: Any, **declared) -> dict[str, Any]:
    """Return the loaders of a declaration."""
    return Loaders(tg.Loader(given, **declared)).make()


class Module:
    """A data module with two validations and no test."""

    def setup(self, stage=None):
        """Remember that it was set up."""
        self.ready = True

    def train_dataloader(self):
        """Return the loader of the training."""
        assert self.ready
        return loader()

    def val_dataloader(self):
        """Return two loaders."""
        return [loader(), loader()]


def one_of(split, batch_size=2):
    """Return the loader of one split, named by the split."""
    return DataLoader(ROWS, batch_size=len(split))


@pytest.mark.parametrize(
    ("given", "declared", "names"),
    [
        (loader(), {}, ["batches"]),
        (loader, {}, ["batches"]),
        (loader(), {"splits": ("train",)}, ["train"]),
        ([torch.zeros(2), torch.zeros(2)], {"splits": ("val",)}, ["val"]),
        ({"train": loader(), "val": loader()}, {}, ["train", "val"]),
        ({"train": loader(), "val": loader()}, {"splits": ("val",)}, ["val"]),
        ({"train": loader, "val": loader}, {}, ["train", "val"]),
        (lambda: {"train": loader(), "val": loader()}, {}, ["train", "val"]),
        (lambda: (loader(), loader()), {}, ["train", "val"]),
        (lambda: (loader(), loader()), {"splits": ("fit", "holdout")}, ["fit", "holdout"]),
        (one_of, {"splits": ("train", "val")}, ["train", "val"]),
        (Module, {}, ["train", "val.0", "val.1"]),
        (Module(), {"splits": ("train",)}, ["train"]),
        (Module, {"splits": ("valid",)}, ["valid.0", "valid.1"]),
    ],
)
def test_splits_are_found(given: Any, declared: dict, names: list[str]) -> None:
    """Whatever was given: a loader, several, functions, classes, data modules."""
    assert list(resolved(given, **declared)) == names


def test_a_function_is_called_for_each_split_by_its_name() -> None:
    """The parameter takes the split."""
    made = resolved(one_of, splits=("train", "val"))
    assert [made[name].batch_size for name in made] == [5, 3]


@pytest.mark.parametrize(
    ("given", "declared", "words"),
    [
        (lambda: None, {}, "is None, which cannot be iterated"),
        (lambda: 3, {}, "is of the type int"),
        (lambda: ROWS, {}, "is a dataset, which holds samples"),
        (lambda: {"train": torch.zeros(3)}, {}, "is of the type Tensor"),
        (loader, {"splits": ("train", "val")}, "has one loader, and 2 splits"),
        (lambda: (loader(),) * 3, {"splits": ("train", "val")}, "has 3 loaders in a row"),
        (lambda: {"train": loader()}, {"splits": ("train", "val")}, "no loader of the split 'val'"),
        (Module, {"splits": ("train", "test")}, "no loader of the split 'test'"),
        (lambda: 1 / 0, {}, "raised ZeroDivisionError while the loaders were made"),
    ],
)
def test_what_is_no_loader(given: Any, declared: dict, words: str) -> None:
    """Each is told in a sentence of its own."""
    with pytest.raises(SubjectError, match=words):
        resolved(given, **declared)


def test_a_factory_is_seeded_and_called_anew() -> None:
    """The same seed gives the same data, another one others; a given loader is always the same."""
    loaders = Loaders(tg.Loader(lambda: DataLoader(TensorDataset(torch.randn(4, 2)))))

    def data(seed: int) -> list:
        """Return what one seed gives."""
        (made,) = loaders.make(seed).values()
        return made.dataset.tensors[0].tolist()

    assert data(1) == data(1) != data(2)
    given = loader()
    assert Loaders(tg.Loader(given)).make()["batches"] is given


def test_a_rank_is_told_by_the_names_that_the_function_uses() -> None:
    """Without ranks only what the function needs is given: process 0 of 1."""

    def build(local_rank, num_replicas, rank=7):
        """Return a loader that remembers what it was called with."""
        return [torch.tensor([local_rank, num_replicas, rank])]

    loaders = Loaders(tg.Loader(build))
    assert loaders.make()["batches"][0].tolist() == [0, 1, 7]
    assert loaders.make(rank=1, world=2)["batches"][0].tolist() == [1, 2, 1]


def test_given_loaders_are_put_back() -> None:
    """The generator of a loader and the epoch of its sampler are as they were."""
    generator = torch.Generator().manual_seed(5)
    given = DataLoader(ROWS, batch_size=2, shuffle=True, generator=generator)
    given.sampler.epoch = 3
    given.sampler.set_epoch = lambda epoch: setattr(given.sampler, "epoch", epoch)
    before = generator.get_state().clone()
    with keep_state({"train": given}):
        set_epoch(given, 8)
        list(given)
        assert given.sampler.epoch == 8
        assert not torch.equal(generator.get_state(), before)
    assert given.sampler.epoch == 3
    assert torch.equal(generator.get_state(), before)
