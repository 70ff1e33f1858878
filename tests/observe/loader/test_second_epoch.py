"""How much of a long second epoch is looked at, and that nothing is lost by it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import trainguard as tg
from tests.observe.loader.probed import rows
from trainguard.core.catalogue import catalogue
from trainguard.core.settings import Settings
from trainguard.events.loader import Epoch
from trainguard.observe.loader.observer import LoaderObservation
from trainguard.observe.loader.scan import LEAST

LONG = 200  # batches
JUDGES = {made.name: made.judge for made in catalogue("loader")}


def looked_at(build: Any, split: str = "train", judge: str = "", **declared) -> tuple[int, list]:
    """Return how many batches of the second epoch were looked at, and what a judge finds."""
    splits = {split: declared.pop("promises", {})}
    subject = tg.Loader(build, splits=splits, name="x", **declared)
    trace = LoaderObservation(subject, "cpu", "float32", Settings()).trace("scan")
    (second,) = [event for event in trace if isinstance(event, Epoch) and event.epoch == 1]
    return second.batches, list(JUDGES[judge](trace)) if judge else []


class Order:
    """A sampler that draws as a function of the epoch says."""

    def __init__(self, draw: Callable[[int], list[int]]) -> None:
        self.draw, self.epoch = draw, 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.draw(0))

    def __iter__(self):
        """Draw one epoch."""
        self.epoch += 1
        return iter(self.draw(self.epoch - 1))


def tail_moved(epoch: int) -> list[int]:
    """Draw in order but for the end, which turns round in each epoch."""
    end = list(range(LONG - 10, LONG))
    return [*range(LONG - 10), *(end if epoch % 2 else end[::-1])]


@pytest.mark.parametrize(("batches", "seen"), [(LEAST, LEAST), (LONG, LEAST), (1000, 100)])
def test_of_a_long_epoch_a_part_is_enough(batches: int, seen: int) -> None:
    """An order that is another one at once, and an evaluation that is the same so far."""
    shuffled, fixed = (
        DataLoader(rows(batches * 2), batch_size=2, shuffle=on) for on in (True, False)
    )
    assert looked_at({"train": shuffled}) == (seen, [])
    assert looked_at({"val": fixed}, "val") == (seen, [])
    promises = {"shuffled": False}
    assert looked_at({"train": fixed}, promises=promises) == (seen, [])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_end_with_the_part(workers: int) -> None:
    """Lasting ones too, in the middle of their epoch."""
    loader = DataLoader(rows(LONG), shuffle=True, num_workers=workers, persistent_workers=True)
    assert looked_at({"train": loader}) == (LEAST, [])
    assert loader._iterator is None


def test_the_same_order_is_seen_to_its_end() -> None:
    """It is found, and an order that is another one only at the end is not."""
    judge, promises = "epochs_are_reshuffled", {"shuffled": True}
    fixed = DataLoader(rows(LONG))
    seen, found = looked_at({"train": fixed}, judge=judge, promises=promises)
    assert (seen, len(found)) == (LONG, 1)
    late = DataLoader(rows(LONG), sampler=Order(tail_moved))
    assert looked_at({"train": late}, judge=judge, promises=promises) == (LONG, [])


def test_an_evaluation_that_differs_is_seen_to_its_end() -> None:
    """In its order, or in what its samples are."""
    judge = "evaluation_order_is_fixed"
    moved = DataLoader(rows(LONG), shuffle=True)
    seen, found = looked_at({"val": moved}, "val", judge)
    assert (seen, len(found)) == (LONG, 1)
    seen, (finding,) = looked_at({"val": DataLoader(Noisy())}, "val", judge)
    assert (seen, finding.measured) == (LONG, f"{LONG} of {LONG} samples differ (100 %)")


class Noisy(Dataset):
    """Samples that are drawn anew each time."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return LONG

    def __getitem__(self, index: int) -> torch.Tensor:
        """Draw one sample."""
        return torch.randn(4)


def test_labels_that_change_are_seen_to_their_end() -> None:
    """All of them are counted, and not those of the part."""
    data = TensorDataset(rows(LONG).tensors[0], torch.arange(LONG) % 7)

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        """Draw the labels anew each time."""
        return {"x": torch.stack([x for x, _ in samples]), "y": torch.randint(0, 7, (1,))}

    loader = DataLoader(data, shuffle=True, collate_fn=collate)
    judge = "labels_follow_inputs"
    seen, (finding,) = looked_at({"train": loader}, judge=judge, labels="y")
    assert seen == LONG
    assert finding.measured.endswith(f"of {LONG} inputs")


class Stream(IterableDataset):
    """The same rows each time, one by one."""

    def __iter__(self):
        """Serve them in another order each time."""
        order = torch.randperm(LONG).tolist()
        return (rows(LONG)[index] for index in order)


@pytest.mark.parametrize(
    ("build", "declared"),
    [
        (DataLoader(rows(LONG), shuffle=True), {"promises": {"once": True}}),
        (DataLoader(rows(LONG), shuffle=True), {"chunks": "stream"}),
        (DataLoader(Stream()), {}),
        ([torch.randn(2, 3) for _ in range(LONG)], {}),
    ],
)
def test_other_epochs_are_seen_to_their_end(build: Any, declared: dict[str, Any]) -> None:
    """Where whole epochs are compared, or where a stream would go on in the middle."""
    assert looked_at({"train": build}, **declared)[0] == LONG
