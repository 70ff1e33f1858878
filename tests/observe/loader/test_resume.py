"""How real loaders go on after a save within an epoch."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from tests.observe.loader.probed import Drawing, loader, probed, rows, told
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.loader import Serving


class Shuffle(Sampler):
    """A shuffle by the epoch, with a place in it; batches of four of forty rows."""

    def __init__(self, seed: int | None = 0, forgets: bool = False) -> None:
        self.seed, self.forgets = seed, forgets
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Take another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches."""
        return 10

    def __iter__(self) -> Iterator[list[int]]:
        """Draw from the place on."""
        seed = torch.initial_seed() if self.seed is None else self.seed + self.epoch
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
        batches, self.start = order.split(4)[self.start :], self.start if self.forgets else 0
        yield from (batch.tolist() for batch in batches)


class Counted:
    """A loader that counts what was taken out of it; `shift` is by how much it is wrong."""

    def __init__(self, inner: DataLoader, shift: int = 0) -> None:
        self.inner, self.taken, self.shift = inner, 0, shift
        self.batch_sampler = inner.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        """Serve, and count."""
        self.taken = self.batch_sampler.start
        for batch in self.inner:
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"taken": self.taken + self.shift}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the place."""
        self.batch_sampler.start = state["taken"]


def counted(shift: int = 0, forgets: bool = False, dataset: Any = None, **options):
    """Return a function that makes such a loader."""
    sampler = {"seed": options.pop("seed", 0), "forgets": forgets}
    build = loader(dataset or rows(), batch_size=1, **options)

    def make() -> Counted:
        """Make the loader."""
        made = build()
        return Counted(
            DataLoader(
                made.dataset, batch_sampler=Shuffle(**sampler), num_workers=made.num_workers
            ),
            shift,
        )

    return make


def details(build: Any, **declared) -> dict[str, set[str]]:
    """Return what is wrong, by quantity."""
    found: dict[str, set[str]] = {}
    for event in probed("resume", build, **{"resume": True, **declared}):
        assert isinstance(event, Serving)
        found.setdefault(event.quantity, set()).add(event.detail)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_goes_on_is_passed(workers: int) -> None:
    """In both epochs, and the epoch after each is whole."""
    events = probed("resume", counted(num_workers=workers), resume=True)
    assert [(e.quantity, e.at, e.detail) for e in events if isinstance(e, Serving)] == [
        ("rest", "epoch 0, after batch 4", ""),
        ("next", "epoch 0, after batch 4", ""),
        ("rest", "epoch 1, after batch 2", ""),
        ("next", "epoch 1, after batch 2", ""),
    ]


@pytest.mark.parametrize(("shift", "detail"), [(1, "skipped"), (-1, "repeated"), (-9, "again")])
def test_a_place_that_is_off_is_told(shift: int, detail: str) -> None:
    """One batch too far or too near; far enough, and it is the beginning."""
    found = details(counted(shift if shift > -9 else 0), resume=_places(shift))
    assert found["rest"] == {detail}


def _places(shift: int):
    """Return functions that save and load, one of which may lose the place."""
    if shift > -9:
        return True
    return lambda made: 0, lambda made, state: made.load_state_dict({"taken": state})


def test_a_skip_that_is_kept_shows_in_the_next_epoch() -> None:
    """The rest is right, and the epoch after it is short."""
    found = details(counted(forgets=True))
    assert (found["rest"], found["next"]) == ({""}, {"length"})


def test_noise_in_workers_is_told_apart_by_the_indices() -> None:
    """No checkpoint keeps the workers' generators."""
    noisy = Drawing(lambda _: torch.rand(()).item())
    assert details(counted(dataset=noisy, num_workers=2)) == {"rest": {""}, "next": {""}}


class Noise:
    """Batches that are nothing but noise, from the system's entropy."""

    def __len__(self) -> int:
        """Return the number of batches."""
        return 8

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Serve them."""
        generator = torch.Generator()
        generator.seed()
        yield from (torch.rand(4, 3, generator=generator) for _ in range(8))

    def state_dict(self) -> dict[str, int]:
        """Return nothing of use."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take nothing."""


class Augmented(Noise):
    """Rows with noise from the global generators, from a place on."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Serve the rest."""
        while self.place < 8:
            self.place += 1
            yield torch.rand(4, 3) + self.place + np.random.rand() + random.random()
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the place."""
        self.place = state["place"]


def test_noise_in_the_process_goes_on_with_the_global_generators() -> None:
    """A checkpoint that restores them gets the same numbers."""
    assert details(Augmented) == {"rest": {""}, "next": {""}}


def test_pure_noise_is_not_judged() -> None:
    """Its samples cannot be told apart."""
    with pytest.raises(Unjudged, match="drawn at random"):
        probed("resume", Noise, resume=True)


def test_given_functions_save_and_load() -> None:
    """They take the loader, and the loader and the state."""
    ways = (lambda made: made.taken, lambda made, state: made.load_state_dict({"taken": state}))
    assert details(counted(), resume=ways) == {"rest": {""}, "next": {""}}


@pytest.mark.parametrize("place", ["save", "load"])
def test_a_state_that_raises_is_told(place: str) -> None:
    """A state that cannot be pickled, or that is not taken, is a finding."""

    def fail(*_: Any) -> None:
        """Refuse the state."""
        raise KeyError("sampler")

    ways = (lambda _: lambda: 0, fail) if place == "save" else (lambda _: 0, fail)
    event = told("resume", counted(), resume=ways)["state"]
    assert event.at
    assert "pickle" in event.detail or "KeyError" in event.detail


def test_a_loader_without_a_state_is_a_fault_of_the_subject() -> None:
    """It is declared to resume, and cannot."""
    with pytest.raises(SubjectError, match="has no state_dict"):
        probed("resume", loader(rows()), resume=True)


def test_a_given_loader_is_not_judged() -> None:
    """It cannot be built anew."""
    with pytest.raises(Unjudged, match="pass the function"):
        probed("resume", counted()(), resume=True)


def test_a_stream_without_an_end_goes_on() -> None:
    """What is looked at is bounded."""

    class Endless(Noise):
        """Numbers without an end, with a place."""

        def __init__(self) -> None:
            self.place = 0

        __len__ = None  # type: ignore[assignment]

        def __iter__(self) -> Iterator[torch.Tensor]:
            """Count up."""
            while True:
                self.place += 1
                yield torch.full((4, 2), float(self.place)) + torch.arange(4)[:, None] / 10

        def state_dict(self) -> dict[str, int]:
            """Return the place."""
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            """Go to the place."""
            self.place = state["place"]

    assert details(Endless) == {"rest": {""}}


def test_short_epochs_are_not_interrupted() -> None:
    """Of two batches there is no middle."""

    def build() -> Counted:
        """Make a loader of two batches."""
        sampler = Shuffle()
        sampler.start = 8
        return Counted(DataLoader(rows(), batch_sampler=sampler))

    assert probed("resume", build, resume=True, batches=2) == []
