"""What the judge says of the orders in which several processes serve one data set."""

import pytest
from torch.utils.data import DistributedSampler

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.ranks import ServedSamples
from trainguard.events.trace import Trace

SIZE = 60


def serve(
    rank: int, epochs: tuple[int, ...] = (0, 1), world: int = 2, seed: int = 0, **more
) -> ServedSamples:
    """Write what torch's own sampler serves one process in some epochs; all are followed."""
    sampler = DistributedSampler(range(SIZE), world, rank % world, seed=seed)
    counts = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        served = [*sampler]
        counts.append("".join(str(served.count(i)) for i in range(SIZE)))
    told = {"share": f"{rank % world} of {world}", "epochs": epochs, "shuffles": True, **more}
    return ServedSamples(
        rank=rank,
        size=SIZE,
        data=told.pop("data", 0),
        sampler="DistributedSampler",
        drawn=(SIZE // world,) * len(epochs),
        counts=tuple(counts),
        **told,
    )


def judge(*served: ServedSamples) -> list[Finding]:
    """Judge what some processes were served."""
    made = find_invariants("ranks.epochs_are_reshuffled_on_all_ranks")[0]
    found = list(made.judge(Trace("train", served)))
    assert not (found and made.evidence(Trace("train", served)))
    return found


def own_order(rank: int, epochs: tuple[int, ...]) -> ServedSamples:
    """Write what a sampler of somebody's own has served."""
    return serve(rank, epochs, share="", shuffles=False)


@pytest.mark.parametrize(
    "served",
    [
        [serve(0), serve(1)],
        [serve(rank, world=7) for rank in range(7)],  # 3 samples are served twice
        [serve(0), serve(1), serve(2), serve(3)],  # two groups that share their data
        [serve(0), serve(1), serve(2, seed=5), serve(3, seed=5)],  # each machine has its own
        [serve(0), serve(1, data=1)],
        [own_order(0, (0, 1)), own_order(1, (3, 4))],  # never shared at all
    ],
)
def test_orders_that_fit(served: list[ServedSamples]) -> None:
    """Each sample comes once in each pass, but for those that fill up the shares."""
    assert judge(*served) == []


@pytest.mark.parametrize(
    ("served", "why", "rank"),
    [
        ([serve(0), serve(1, (0, 0))], "epochs 1 and 0", Rank.BROKEN),
        ([serve(0), serve(1, seed=1)], "a seed of its own", Rank.BROKEN),
        ([own_order(0, (0, 1)), own_order(1, (0, 0))], "an order of its own", Rank.NOTE),
    ],
)
def test_orders_that_do_not_fit(served: list[ServedSamples], why: str, rank: Rank) -> None:
    """A third of the samples comes twice, which is told with the likely cause."""
    (found,) = judge(*served)
    assert why in found.why
    assert found.rank is rank


def test_one_of_many_in_another_epoch() -> None:
    """Its samples are few, and its sampler tells on it."""
    (found,) = judge(*(serve(rank, (0, 1 + (rank == 3)), world=30) for rank in range(30)))
    assert "rank 3" in str(found.at)
