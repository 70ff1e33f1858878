"""How real loaders are seen to share their samples, between ranks and between workers."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

from tests.observe.loader.probed import Drawing, loader, probed, rows, told
from trainguard.events.loader import Serving

RANKS = (1, 2, 4, 8)


def measured(build, ranks: tuple[int, ...] = RANKS, **declared) -> dict[str, list[float]]:
    """Return how far each quantity is above what is allowed, for each number of ranks."""
    over: dict[str, list[float]] = {}
    for event in probed("shards", build, ranks=ranks, **declared):
        assert isinstance(event, Serving)
        allowed = 0.0 if event.quantity in ("uneven", "alike") else event.reference
        over.setdefault(event.quantity, []).append(event.measured - allowed)
    return over


def distributed(count: int, **options):
    """Return a factory with torch's own sampler over so many rows."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        dataset = rows(count)
        sampler = DistributedSampler(dataset, world_size, rank, **options)
        return DataLoader(dataset, batch_size=4, sampler=sampler)

    return build


@pytest.mark.parametrize("count", [96, 97, 101, 103, 127, 9])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True}])
def test_the_sampler_of_torch_shares_out(count: int, options: dict) -> None:
    """Whatever the length, what is filled up or dropped is within what is allowed."""
    over = measured(distributed(count, **options))
    assert len(over["shared"]) == 3
    assert max(*over["shared"], *over["missing"], *over["uneven"]) <= 0


def shared_rows(part) -> object:
    """Return a factory of loaders over the part of sixty rows that a function gives a rank."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        (all_rows,) = rows(60).tensors
        return DataLoader(TensorDataset(part(all_rows, rank, world_size)), batch_size=4)

    return build


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (lambda r, rank, world: r[rank::world], set()),
        (lambda r, rank, world: r[rank * (60 // world) :][: 60 // world], set()),
        (lambda r, rank, world: r, {"shared"}),
        (lambda r, rank, world: r[: 60 // world], {"shared", "missing"}),
        (lambda r, rank, world: r[rank + (world > 1) :: world], {"missing"}),
        (lambda r, rank, world: r[rank * (60 // world) :][: 60 // world + 1], {"shared"}),
    ],
    ids=["strided", "cut", "all", "first", "one off", "overlap"],
)
def test_data_that_are_shared_out_by_hand(part, found: set[str]) -> None:
    """Each way to get it wrong is seen by the samples themselves."""
    over = measured(shared_rows(part), ranks=(1, 2, 4))
    assert {quantity for quantity in ("shared", "missing") if max(over[quantity]) > 0} == found


def test_batches_that_are_filled_up_on_every_rank_are_passed() -> None:
    """Some samplers go round until the last batch of each rank is full."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        (all_rows,) = rows(90).tensors
        full = torch.cat([all_rows, all_rows[: -90 % (4 * world_size)]])
        return DataLoader(TensorDataset(full[rank::world_size]), batch_size=4)

    assert max(max(over) for over in measured(build, ranks=(2, 4)).values()) <= 0


@pytest.mark.parametrize("drop", [True, False])
def test_whole_batches_fill_up_or_are_dropped(drop: bool) -> None:
    """Ranks that share out batches of different size make as many steps each."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank, over fourteen batches of which every third is short."""
        batches = [list(range(i, i + 2 + (i % 3 > 0))) for i in range(0, 56, 4)]
        if drop:
            batches = batches[: len(batches) // world_size * world_size]
        batches += batches[: -len(batches) % world_size]
        return DataLoader(rows(60), batch_sampler=batches[rank::world_size])

    assert max(max(over) for over in measured(build, ranks=(1, 2, 4)).values()) <= 0


def test_a_single_row_that_comes_twice_in_the_data() -> None:
    """Equal samples are told by how often each is there."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank, over rows that are all there twice."""
        (once,) = rows(24).tensors
        return DataLoader(TensorDataset(torch.cat([once, once])[rank::world_size]), batch_size=4)

    assert max(max(over) for over in measured(build).values()) <= 0


def test_a_row_that_a_single_rank_drops_and_serves() -> None:
    """Of equal rows, one may be in the batch that is dropped on one rank and not on two."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank, over 22 rows of which the first and the last are one."""
        (once,) = rows(21).tensors
        dataset = TensorDataset(torch.cat([once, once[:1]]))
        sampler = DistributedSampler(dataset, world_size, rank, shuffle=False)
        return DataLoader(dataset, batch_size=11 if world_size > 1 else 4, sampler=sampler,
                          drop_last=True)  # fmt: skip

    assert max(measured(build, ranks=(2,))["shared"]) <= 0


def test_augmented_samples_are_told_by_their_index() -> None:
    """Noise that is drawn anew makes all samples different."""

    def build(rank: int = 0, world_size: int = 1, overlap: bool = False) -> DataLoader:
        """Make the loader of one rank."""
        dataset = Drawing(lambda _: torch.rand(()).item(), 48)
        sampler = DistributedSampler(dataset, world_size, 0 if overlap else rank)
        return DataLoader(dataset, batch_size=4, sampler=sampler)

    assert max(measured(build)["shared"]) == 0
    assert min(measured(build, arguments={"overlap": True})["shared"]) > 0


def test_augmented_shards_of_a_stream_are_not_judged() -> None:
    """Where neither contents nor indices tell samples apart, nothing is said."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        part = TensorDataset(rows(48).tensors[0][rank::world_size])
        noisy = [lambda batch: torch.stack([b[0] for b in batch]) + torch.rand(())]
        return DataLoader(part, batch_size=4, shuffle=True, collate_fn=noisy[0])

    assert set(measured(build)) == {"uneven"}


def test_drawing_with_replacement_is_not_judged() -> None:
    """There is nothing to share out."""

    def build(rank: int = 0, world_size: int = 1) -> DataLoader:
        """Make the loader of one rank."""
        generator = torch.Generator().manual_seed(rank)
        sampler = RandomSampler(rows(48), replacement=True, generator=generator)
        return DataLoader(rows(48), batch_sampler=BatchSampler(sampler, 4, drop_last=False))

    assert set(measured(build)) == {"uneven"}


def test_ranks_of_different_length_are_told() -> None:
    """The number of batches of the longest and the shortest are compared."""
    over = measured(shared_rows(lambda r, rank, world: r[:40] if rank else r[40:]), ranks=(2,))
    assert over["uneven"] == [5]


class Windows:
    """Random windows without an end, from a generator or from the global one."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Serve windows for ever."""
        while True:
            yield torch.rand(4, 3, generator=self.generator)


@pytest.mark.parametrize(("seeded", "alike"), [("alike", 2), ("by rank", 0), ("globally", 0)])
def test_streams_without_an_end(seeded: str, alike: int) -> None:
    """Ranks that are seeded alike serve the same; global generators are the training's affair."""

    def build(rank: int = 0, world_size: int = 1) -> Windows:
        """Make the loader of one rank."""
        seed = {"alike": 7, "by rank": 7 + rank}.get(seeded)
        return Windows(None if seed is None else torch.Generator().manual_seed(seed))

    over = measured(build, ranks=(2,), batches=8)
    assert over["alike"] == [alike]


class Numbers(IterableDataset):
    """Numbers, shared out between workers or not, with or without noise."""

    def __init__(self, split: bool, noise: bool = False) -> None:
        self.split, self.noise = split, noise

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Serve this worker's numbers."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.split else (0, 1)
        for number in range(first, 23, step):
            yield torch.tensor([float(number), torch.rand(()).item() if self.noise else 0.0])


@pytest.mark.parametrize(("split", "twice"), [(True, 0), (False, 23)])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_stream_in_two_workers(split: bool, twice: int, drop_last: bool) -> None:
    """What each worker drops is not missing; what each serves again is too much."""
    build = loader(Numbers(split), num_workers=2, drop_last=drop_last)
    events = {e.quantity: e for e in probed("shards", build) if isinstance(e, Serving)}
    assert events["missing"].measured <= events["missing"].reference
    assert twice - 3 <= events["shared"].measured <= twice


def test_a_loader_that_no_split_is_said_of() -> None:
    """It may be trained on, and its workers serve everything."""
    shared = told("shards", loader(Numbers(False), num_workers=2), splits=())["shared"]
    assert (shared.split, shared.measured) == ("batches", 23)


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 0}])
def test_a_stream_in_one_process_is_not_tried(options: dict) -> None:
    """Nobody is there to share with."""
    assert probed("shards", loader(Numbers(False), **options)) == []


def test_a_noisy_stream_is_not_judged() -> None:
    """Its samples cannot be told apart."""
    assert probed("shards", loader(Numbers(False, noise=True), num_workers=2)) == []


def test_the_class_of_torch_is_put_back() -> None:
    """Passes are counted during the probe only."""
    before = DistributedSampler.__iter__
    measured(distributed(16), ranks=(2,))
    assert DistributedSampler.__iter__ is before
