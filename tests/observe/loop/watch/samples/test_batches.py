"""What the recorder sees of data: waiting, samples, fingerprints, and one batch again and again."""

import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.observe.loop.loading import fit, repeats_of, rows, steps_of
from tests.observe.loop.trainings import accumulated, adversaries, network, plain


def test_samples_are_counted() -> None:
    """Each pass that learns has its samples, the smaller last batch too."""
    steps = steps_of(lambda: fit(DataLoader(rows(40), batch_size=16)))
    assert [step.batch for step in steps] == [(16,), (16,), (8,)]
    assert {step.batch for step in steps_of(accumulated, 3, 4)} == {(8,) * 4}
    assert all(len(step.batch) == step.trained for step in steps_of(adversaries))


def test_fingerprints_tell_batches_apart() -> None:
    """Two epochs without shuffling have the same ones, in any process; a batch is told by bytes."""
    data = rows(48)
    loader = DataLoader(data, batch_size=16)

    def train(epochs: int = 2) -> None:
        """Train for some epochs."""
        model = network()
        for _ in range(epochs):
            fit(loader, model)

    prints = [step.fingerprints for step in steps_of(train)]
    assert prints[:3] == prints[3:]
    assert len(set(prints)) == 3
    assert prints == [step.fingerprints for step in steps_of(train)]
    large = torch.randn(600, 600)
    other = large.clone()
    other[::2] += 1
    model = nn.Linear(600, 1)
    both = steps_of(lambda: fit([(large, torch.ones(600, 1)), (other, torch.ones(600, 1))], model))
    assert both[0].fingerprints != both[1].fingerprints


def test_waiting_is_measured() -> None:
    """A slow data set is waited for in each step; a fast one is not, nor is none at all."""

    class Slow(Dataset):
        """Takes two milliseconds for a sample."""

        def __len__(self) -> int:
            """Return the number of samples."""
            return 12

        def __getitem__(self, index):
            """Sleep, and return a sample."""
            time.sleep(0.002)
            return torch.randn(4), torch.randn(1)

    steps = steps_of(lambda: fit(DataLoader(Slow(), batch_size=4)))
    assert all(0.008 <= step.wait < step.seconds for step in steps)
    quick = steps_of(lambda: fit(DataLoader(rows(), 4)))
    assert min(step.wait for step in quick) < 0.008  # on a busy machine, some take longer
    assert {step.wait for step in steps_of(plain)} == {0.0}


def test_a_loader_in_a_loader_is_waited_for_once() -> None:
    """A data set that is made of batches of another loader, which is the slow one."""

    class Slow(TensorDataset):
        """Takes two milliseconds for a sample."""

        def __getitem__(self, index):
            """Sleep, and return a sample."""
            time.sleep(0.002)
            return super().__getitem__(index)

    inner = DataLoader(Slow(*rows(16).tensors), batch_size=4)

    class Outer(IterableDataset):
        """Passes on what another loader serves."""

        def __iter__(self):
            """Yield its batches."""
            yield from inner

    steps = steps_of(lambda: fit(DataLoader(Outer(), batch_size=None)))
    assert [step.batch for step in steps] == [(4,)] * 4
    assert all(0.008 <= step.wait < step.seconds for step in steps)


def test_a_loader_of_another_thread_is_not_waited_for() -> None:
    """A thread that fetches ahead waits, and the training does not."""
    fetched: list[object] = []

    def train() -> None:
        """Fetch in a thread, then train."""
        thread = threading.Thread(target=lambda: fetched.extend(DataLoader(rows(), batch_size=8)))
        thread.start()
        thread.join()
        fit(fetched)

    assert {step.wait for step in steps_of(train)} == {0.0}


def test_the_same_batch_each_time_is_seen() -> None:
    """`next(iter(loader))` begins anew in each step: without shuffling, with the same batch."""
    loader = DataLoader(rows(40), batch_size=8)
    (probe,) = repeats_of(lambda: fit(next(iter(loader)) for _ in range(6)))
    assert (probe.measured, probe.reference) == (1, 5)
    assert "test_batches.py:" in probe.source
    assert probe.label == "input of Sequential, 8 samples"


@pytest.mark.parametrize("move", ["view", "to", "slice"])
def test_a_view_of_the_batch_is_the_batch(move: str) -> None:
    """What the model gets may be another shape of what the loader served."""
    loader = DataLoader(rows(40), batch_size=8)
    views = {
        "view": lambda x: x.view(8, 2, 2).flatten(1),
        "to": lambda x: x.to("cpu").float(),
        "slice": lambda x: x[:, :4],
    }

    def serve():
        """Yield the first batch again and again."""
        for _ in range(6):
            inputs, target = next(iter(loader))
            yield views[move](inputs), target

    (probe,) = repeats_of(lambda: fit(serve()))
    assert probe.measured == 1


def test_shuffled_beginnings_differ() -> None:
    """With shuffling, `next(iter(loader))` is a way of sampling."""
    loader = DataLoader(rows(40), batch_size=8, shuffle=True)
    (probe,) = repeats_of(lambda: fit(next(iter(loader)) for _ in range(6)))
    assert probe.measured == 6


def test_an_epoch_has_as_many_batches_as_its_loader() -> None:
    """Each batch is met once in each epoch."""
    loader, model = DataLoader(rows(40), batch_size=8), network()
    (probe,) = repeats_of(lambda: [fit(loader, model) for _ in range(3)])
    assert (probe.measured, probe.reference) == (5, 5)


@pytest.mark.parametrize("case", ["once", "small", "single", "own", "normalised", "targets"])
def test_a_batch_that_may_well_be_the_same_is_left_alone(case: str) -> None:
    """Overfitting one batch on purpose, loaders with one batch, and batches from elsewhere."""
    loader = DataLoader(rows(40), batch_size=8)
    first = next(iter(loader))
    full = DataLoader(rows(8), batch_size=8)
    sampler = torch.utils.data.RandomSampler(range(1), replacement=True, num_samples=24)
    one = DataLoader(rows(1), batch_size=4, sampler=sampler)
    zeros = DataLoader(TensorDataset(torch.zeros(40, 4), torch.randn(40, 1)), batch_size=8)
    cases = {
        "once": lambda: [next(iter(loader))] * 6,
        "small": lambda: (next(iter(full)) for _ in range(6)),
        "single": lambda: one,
        "own": lambda: [first] * 6,
        "normalised": lambda: ((2 * x, y) for x, y in (next(iter(loader)) for _ in range(6))),
        "targets": lambda: zeros,
    }
    found = repeats_of(lambda: fit(cases[case]()))
    assert [probe.measured for probe in found] == ([2] if case == "targets" else [])
