"""What others published, used as it should not be: each mistake is found, and nothing else."""

from importlib import import_module
from typing import Any

import pytest

import trainguard as tg

TRAIN = {"train": {"shuffled": True}}


def accelerate_without_the_rank() -> tg.Loader:
    """Let every process prepare its loader as if it were the only one."""
    guard = import_module("tests.third_party.guard_accelerate")

    def build(rank: int, world_size: int) -> Any:
        return guard.prepared(0, 1)

    return tg.Loader(build, splits=TRAIN, ranks=(1, 2, 4))


def accelerate_skips_one_too_many() -> tg.Loader:
    """Count the batch that was being trained on as done."""
    guard = import_module("tests.third_party.guard_accelerate")

    def load(loader: Any, state: dict[str, int]) -> None:
        guard.load(loader, {**state, "served": state["served"] + 1})

    return tg.Loader(guard.Counted, splits=TRAIN, resume=(guard.save, load))


def webdataset_without_a_node_splitter() -> tg.Loader:
    """Let every rank read all shards."""
    guard = import_module("tests.third_party.guard_webdataset")

    def build(rank: int, world_size: int) -> Any:
        return guard.ranked(0, 1)

    return tg.Loader(build, splits=TRAIN, ranks=(1, 2, 4))


def webdataset_without_a_worker_splitter() -> tg.Loader:
    """Let every worker read all shards."""
    guard = import_module("tests.third_party.guard_webdataset")
    loader = import_module("torch.utils.data").DataLoader

    def build() -> Any:
        stream = guard.pipeline("train", workersplitter=None, seed=1)
        return loader(stream, batch_size=None, num_workers=2)

    return tg.Loader(
        build,
        splits={"train": {}},
        allow={"epochs_are_reshuffled": "workers begin anew, see docs/third_party_loaders.md"},
    )


def datasets_shuffled_for_the_test() -> tg.Loader:
    """Shuffle the test as the training is shuffled."""
    guard = import_module("tests.third_party.guard_datasets")
    loader = import_module("torch.utils.data").DataLoader

    def build(split: str) -> Any:
        rows = guard.table()["train" if split == "train" else "test"].with_format("torch")
        return loader(rows, 8, shuffle=True)

    return tg.Loader(build, splits={**TRAIN, "test": {"shuffled": False}})


def datasets_split_after_shuffling() -> tg.Loader:
    """Cut two splits out of rows that are shuffled with another seed for each."""
    guard = import_module("tests.third_party.guard_datasets")
    loader = import_module("torch.utils.data").DataLoader

    def build(split: str) -> Any:
        train = split == "train"
        rows = guard.table()["train"].shuffle(seed=train).with_format("torch")
        return loader(rows.select(range(60) if train else range(60, 96)), 8, shuffle=train)

    return tg.Loader(build, splits={**TRAIN, "test": {}})


def torchdata_without_a_place_of_its_own() -> tg.Loader:
    """Save the place of a stream, and do not go back to it."""
    guard = import_module("tests.third_party.guard_torchdata")

    class Forgetful(guard.Stream):
        """Begins anew after each resume."""

        def load_state_dict(self, state: dict[str, int]) -> None:
            """Forget the place."""

    def build() -> Any:
        return guard.StatefulDataLoader(Forgetful("train"), batch_size=8)

    return tg.Loader(build, splits={"train": {"shuffled": False}}, resume=True)


def lightning_without_a_seed() -> tg.Loader:
    """Draw the split of a data module anew for each loader."""
    guard = import_module("tests.third_party.guard_lightning")

    class Drawn(guard.DigitsModule):
        """Splits its data whenever it is asked for a loader."""

        def train_dataloader(self) -> Any:
            """Return the loader of the training."""
            return self._loader(self._drawn()[0], shuffle=True)

        def val_dataloader(self) -> Any:
            """Return the loader of the validation."""
            return self._loader(self._drawn()[1])

        def _drawn(self) -> Any:
            """Draw two parts."""
            return guard.random_split(guard.Digits(self.path), [110, 30])

    return tg.Loader(Drawn, splits=("train", "val"))


def collator_counts_the_end_as_padding() -> tg.Loader:
    """Shift the mask that the collator made by two."""
    guard = import_module("tests.third_party.guard_collators")

    def build() -> Any:
        loader = guard.classified("train")
        whole = loader.collate_fn

        def collate(samples: Any) -> Any:
            batch = whole(samples)
            batch["attention_mask"][:, :-2] &= batch["attention_mask"][:, 2:]
            return batch

        loader.collate_fn = collate
        return loader

    return tg.Loader(
        build, splits=("train",), fields=guard.TEXT, mask="attention_mask", allow=guard.PADDED
    )


MISUSES = {
    accelerate_without_the_rank: ("accelerate", "shards_partition_the_data"),
    accelerate_skips_one_too_many: ("accelerate", "resume_continues_the_epoch"),
    webdataset_without_a_node_splitter: ("webdataset", "shards_partition_the_data"),
    webdataset_without_a_worker_splitter: ("webdataset", "shards_partition_the_data"),
    datasets_shuffled_for_the_test: ("datasets", "evaluation_order_is_fixed"),
    datasets_split_after_shuffling: ("datasets", "splits_are_disjoint"),
    torchdata_without_a_place_of_its_own: ("torchdata", "resume_continues_the_epoch"),
    lightning_without_a_seed: ("lightning", "splits_are_disjoint"),
    collator_counts_the_end_as_padding: ("transformers", "padding_is_masked"),
}


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.__name__)
def test_a_misuse_is_found(misuse: Any) -> None:
    """The invariant that is about it breaks."""
    package, invariant = MISUSES[misuse]
    pytest.importorskip(package)
    with pytest.raises(tg.Broken) as broken:
        tg.check(misuse(), devices=["cpu"])
    names = {v.invariant.name for v in broken.value.verdicts if v.outcome == "broken"}
    assert names == {invariant}, str(broken.value)
