"""Real trainings followed step by step: what grows is found within ten steps, nothing else is."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.observe.memory import growing, lasting
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.growth import memory_does_not_grow
from trainguard.observe.memory.leak_watch import LeakWatch
from trainguard.observe.memory.run_call import silence


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Seed each training, on one thread, and let nothing that it prints be kept."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with silence(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as while a subject is observed
        yield
    torch.set_num_threads(threads)


def followed(train: Callable[[], object]) -> tuple[LeakWatch, Trace[Usage]]:
    """Follow a training, and return what was told of it."""
    follower = LeakWatch()
    with follower.following():
        train()
    return follower, Trace("train", tuple(follower.told))


@pytest.mark.parametrize("name", growing.GROWING)
def test_what_grows_is_found_in_ten_steps(name: str) -> None:
    """Every kind of growth is one broken finding, which names the line and who keeps it."""
    train, keeper = growing.GROWING[name]
    follower, trace = followed(train)
    (finding,) = memory_does_not_grow(trace)
    assert follower.told[0].how == "measured on cpu over 10 steps"
    assert finding.rank == "broken"
    assert keeper in finding.why
    assert finding.source.startswith(growing.__file__)


@pytest.mark.parametrize("train", lasting.HEALTHY, ids=lambda train: train.__name__)
def test_a_healthy_training_does_not_grow(train: Callable[[], None]) -> None:
    """What fills up to a bound, or is let go of later, is neither broken nor a note."""
    follower, trace = followed(train)
    assert follower.steps >= 10
    assert list(memory_does_not_grow(trace)) == []


def test_one_pass_tells_less() -> None:
    """What may be let go of at the end of a pass that was not seen is a note."""
    data = [(torch.randn(64, 4),) for _ in range(12)]

    def train() -> None:
        """Collect within the only pass."""
        (model, optimizer), kept = growing.pair(), []
        for (x,) in torch.utils.data.DataLoader(data, batch_size=None):
            kept.append(growing.fit(model, optimizer, x)[1].detach().repeat(1, 8))

    _, trace = followed(train)
    (finding,) = memory_does_not_grow(trace)
    assert finding.rank == "note"
    assert "the end of a pass" in finding.why


def test_more_steps_are_made_where_something_grows() -> None:
    """A training that seems to grow is followed further than one that does not."""

    def train(kept: list[torch.Tensor], count: int) -> None:
        """Keep so many of the tensors of a hundred steps."""
        model, optimizer = growing.pair()
        for _ in range(100):
            x = growing.fit(model, optimizer)[0]
            kept += [x] if len(kept) < count else []

    assert followed(lambda: train([], 0))[0].steps == 10
    grows, trace = followed(lambda: train([], 100))
    assert grows.steps in (20, 40, 80)
    assert [finding.rank for finding in memory_does_not_grow(trace)] == ["broken"]
    fills, trace = followed(lambda: train([], 15))
    assert fills.steps == 20
    assert not list(memory_does_not_grow(trace))
