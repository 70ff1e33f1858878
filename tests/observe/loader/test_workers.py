"""What real worker processes are seen to draw."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import trainguard as tg
from tests.observe.loader.probed import Drawing, loader, probed
from trainguard.api.check import check
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.loader import Batch, Serving
from trainguard.observe.loader.observer import LoaderObservation

AT_MODULE_LEVEL = np.random.default_rng(3)


def courses(events: list[Event]) -> dict[tuple[int, int], list[int]]:
    """Return what each worker drew in each epoch."""
    made: dict[tuple[int, int], list[int]] = {}
    for event in events:
        if isinstance(event, Batch):
            made.setdefault((event.epoch, event.rank), []).extend(event.prints)
    return made


def alike(events: list[Event]) -> list[str]:
    """Return the generators that were in one state in each worker after each draw."""
    return [e.at for e in events if isinstance(e, Serving) and e.measured == e.reference > 0]


def fixed(_worker: int) -> None:
    """Seed all there is with one number."""
    np.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)


DRAWS = {
    "torch": lambda _: torch.rand(()).item(),
    "numpy": lambda _: np.random.rand(),
    "random": lambda _: random.random(),
}


@pytest.mark.parametrize("source", DRAWS)
def test_workers_draw_apart_from_the_global_generators(source: str) -> None:
    """All three are seeded by torch in each worker; the one that is used is told."""
    events = probed("workers", loader(Drawing(DRAWS[source]), num_workers=2))
    made = courses(events)
    assert len({tuple(course) for course in made.values()}) == 4
    assert [len(set(course)) for course in made.values()] == [8] * 4
    assert [e.at for e in events if isinstance(e, Serving)] == [f"the global generator of {source}"]
    assert alike(events) == []


@pytest.mark.parametrize("source", DRAWS)
def test_workers_that_are_seeded_alike_draw_alike(source: str) -> None:
    """One seed for all makes one course for all."""
    build = loader(Drawing(DRAWS[source]), num_workers=2, worker_init_fn=fixed)
    events = probed("workers", build)
    assert len({tuple(course) for course in courses(events).values()}) == 1
    assert alike(events) == [f"the global generator of {source}"]


class Own(Drawing):
    """Draws from a generator that is made before the workers are."""

    def __init__(self, rng: object) -> None:
        super().__init__(lambda self: float(self.rng.random()))
        self.rng = rng


class OfTorch:
    """A generator of torch, under a method of the name of the others'."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def random(self) -> float:
        """Draw a number."""
        return torch.rand((), generator=self.generator).item()


OWN = {
    "Generator": lambda: (np.random.default_rng(0), "rng"),
    "RandomState": lambda: (np.random.RandomState(0), "rng"),
    "Random": lambda: (random.Random(0), "rng"),
    "torch": lambda: (OfTorch(), "generator"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_copied_generator_is_named(kind: str) -> None:
    """Each worker has a copy, wherever in the data set it is kept."""
    rng, name = OWN[kind]()
    events = probed("workers", loader(Own(rng), num_workers=2))
    assert alike(events) == [f"the generator `{name}`"]


def test_a_generator_of_the_module_is_named() -> None:
    """What stands at module level is copied too."""
    dataset = Drawing(lambda _: AT_MODULE_LEVEL.random())
    events = probed("workers", loader(dataset, num_workers=2))
    assert alike(events) == ["the generator `AT_MODULE_LEVEL`"]


def test_a_generator_of_the_collate_function_is_named() -> None:
    """Masks and mixtures are drawn there, in the same workers."""
    mixer = np.random.default_rng(0)

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        """Scale a batch at random."""
        return torch.stack(samples) * mixer.random()

    dataset = Drawing(lambda _: 0.0)
    events = probed("workers", loader(dataset, num_workers=2, collate_fn=collate))
    assert alike(events) == ["the generator `mixer`"]


def test_lasting_workers_do_not_begin_again() -> None:
    """Seeds that repeat with each start do not repeat where there is one start only."""
    options = {"num_workers": 2, "worker_init_fn": np.random.seed}
    dataset = Drawing(DRAWS["numpy"])
    started = courses(probed("workers", loader(dataset, **options)))
    lasting = courses(probed("workers", loader(dataset, persistent_workers=True, **options)))
    assert started[0, 0] == started[1, 0]
    assert lasting[0, 0] != lasting[1, 0]


class ByEpoch(Drawing):
    """Noise by epoch and index; the epoch is shared with the workers, or is not."""

    def __init__(self, shared: bool) -> None:
        super().__init__(lambda self: float(np.random.default_rng(int(self.epoch)).random()))
        self.epoch = torch.zeros(())
        if shared:
            self.epoch.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Take another epoch."""
        self.epoch.fill_(epoch)


@pytest.mark.parametrize(("lasting", "shared", "heard"), [(1, 0, [1]), (1, 1, [2]), (0, 0, [])])
def test_workers_that_last_must_hear_of_the_epoch(lasting: int, shared: int, heard: list) -> None:
    """What they were started with is what they know, unless it is shared; new ones know it."""
    build = loader(ByEpoch(bool(shared)), num_workers=2, persistent_workers=bool(lasting))
    events = [e for e in probed("workers", build) if isinstance(e, Serving)]
    assert [e.reference for e in events if e.quantity == "epoch"] == heard


def test_a_coin_is_thrown_more_often() -> None:
    """Few draws of two values say nothing: then there are many."""
    dataset = Drawing(lambda _: float(random.random() < 0.05))
    made = courses(probed("workers", loader(dataset, num_workers=2)))
    assert {len(course) for course in made.values()} <= {8, 48}


def test_what_is_never_random_is_drawn_a_few_times() -> None:
    """All draws are one."""
    made = courses(probed("workers", loader(Drawing(lambda _: 1.0), num_workers=2)))
    assert len({draw for course in made.values() for draw in course}) == 1


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "batch_size": None}])
def test_loaders_without_workers_or_batches(options: dict) -> None:
    """Nothing is told of the former; the latter is asked sample by sample."""
    events = probed("workers", loader(Own(np.random.default_rng(0)), **options))
    assert bool(alike(events)) == (options["num_workers"] > 0)


class Stream(IterableDataset):
    """Rows without an end or with one, by a generator of its own, or the worker's."""

    def __init__(self, split: bool, seeded: bool) -> None:
        self.rng = np.random.default_rng(0)
        self.split, self.seeded = split, seeded

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Serve a hundred rows."""
        worker = get_worker_info()
        step = worker.num_workers if worker and self.split else 1
        rng = np.random.default_rng(torch.initial_seed()) if self.seeded else self.rng
        for index in range(worker.id if worker and self.split else 0, 100, step):
            yield torch.tensor([float(index), rng.random()])


@pytest.mark.parametrize(
    ("split", "seeded", "found"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_streams_are_judged_where_they_are_the_same(split: bool, seeded: bool, found: bool) -> None:
    """A stream that is shared out is another one in each worker, and so is one that is random."""
    events = probed("workers", loader(Stream(split, seeded), num_workers=2))
    made = courses(events)
    assert (bool(alike(events)) and made[0, 0] == made[0, 1]) == found


@pytest.mark.parametrize(("share", "felt"), [(1.0, "felt"), (0.0, "")])
def test_a_seeded_generator_beside_another_one(share: float, felt: str) -> None:
    """The samples differ by torch's, and tell whether NumPy's has a share in them."""

    def draw(_: Drawing) -> float:
        """Draw from both."""
        return share * np.random.rand() + torch.rand(()).item()

    build = loader(Drawing(draw), num_workers=2, worker_init_fn=lambda _: np.random.seed(0))
    details = {e.at: e.detail for e in probed("workers", build) if isinstance(e, Serving)}
    assert details == {
        "the global generator of numpy": felt,
        "the global generator of torch": "",
    }


def test_validation_is_left_alone() -> None:
    """Fixed draws are what an evaluation wants."""
    build = loader(Own(np.random.default_rng(0)), num_workers=2)
    assert probed("workers", lambda: {"val": build()}, splits=("val",)) == []


def test_given_generators_stay_where_they_are() -> None:
    """The loader's own generator is copied for the probe."""
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    build = loader(Drawing(DRAWS["torch"]), num_workers=2, generator=generator)()
    probed("workers", {"train": build})
    assert torch.equal(before, generator.get_state())


def test_a_data_set_that_refuses_repetition_is_not_judged() -> None:
    """The same sample twice may be a fault of the question, never of the loader."""

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        """Refuse equal samples."""
        if torch.equal(samples[0], samples[1]):
            raise ValueError("the samples of a batch must differ")
        return torch.stack(samples)

    with pytest.raises(Unjudged, match="must differ"):
        probed("workers", loader(Drawing(lambda _: 0.0), num_workers=2, collate_fn=collate))


def hang(_: object) -> float:
    """Wait for what never comes, in a worker."""
    if get_worker_info() is not None:
        time.sleep(600)
    return 0.0


def kill(_: object) -> float:
    """End the worker as the system does when memory runs out."""
    if get_worker_info() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


@pytest.mark.parametrize("end", [hang, kill])
def test_no_process_is_left_behind(end) -> None:
    """Workers that hang or die in the probe leave no process, and no fault of ours."""
    before = multiprocessing.active_children()
    build = loader(Drawing(end), num_workers=2, persistent_workers=True)
    subject = tg.Loader(build, splits={"train": {}}, name="x", timeout=1.5)
    with pytest.raises((SubjectError, Unjudged)):
        LoaderObservation(subject, "cpu", "float32", Settings()).observe_settings("workers", [{}])
    assert multiprocessing.active_children() == before


def test_the_verdict_is_broken() -> None:
    """From the declaration to the finding."""
    subject = tg.Loader(
        loader(Own(np.random.default_rng(0)), num_workers=2), splits={"train": {}}, name="x"
    )
    with pytest.raises(tg.Broken, match="draw the same random numbers"):
        check(subject, select=["workers_draw_different_numbers"])
