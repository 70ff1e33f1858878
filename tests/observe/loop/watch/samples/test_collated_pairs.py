"""Collate functions that order one field of their samples, and not another."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import collated_pairs
from trainguard.observe.loop.watch.samples.collated_pairs import find_torn

LONGEST = {"key": lambda sample: -len(sample[0]), "reverse": False}


def make_samples(*, shape: tuple[int, ...] = (), length: int = 0) -> list[tuple[torch.Tensor, int]]:
    """Return series of several lengths, or of one, with their classes."""
    draw = random.Random(0)
    torch.manual_seed(0)
    lengths = [length or draw.randint(3, 20) for _ in range(40)]
    return [(torch.randint(1, 50, (n, *shape)).float(), draw.randrange(4)) for n in lengths]


def torn(samples, *, first=True, turn=False):
    """Order the series, and leave the classes."""
    labels = torch.tensor([label for _, label in samples])
    series = [series for series, _ in sorted(samples, **LONGEST)]
    return pad_sequence(series, batch_first=first), labels


def whole(samples):
    """Order the samples."""
    return torn(sorted(samples, **LONGEST))


def by_torch(samples):
    """Order the rows of a batch, and leave the classes."""
    rows, labels = pad_sequence([s for s, _ in samples], batch_first=True), [y for _, y in samples]
    order = torch.tensor([len(s) for s, _ in samples]).argsort()
    return {"x": rows[order], "y": torch.tensor(labels)}


def with_order(samples):
    """Return the order, too, by which the caller puts them back."""
    order = torch.tensor([-len(s) for s, _ in samples]).argsort()
    return *torn(samples), order


def packed(samples):
    """Pack what was ordered."""
    series, labels = torn(samples)
    lengths = torch.tensor([len(s) for s, _ in sorted(samples, **LONGEST)])
    return pack_padded_sequence(series, lengths, batch_first=True), labels


def packed_by_itself(samples):
    """Pack what is not ordered: it keeps the order by itself."""
    series = pad_sequence([s for s, _ in samples], batch_first=True)
    lengths = torch.tensor([len(s) for s, _ in samples])
    batch = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
    return batch, torch.tensor([label for _, label in samples])


def twice(samples):
    """Give the series in both orders, and the classes in one of them."""
    return *whole(samples), pad_sequence([s for s, _ in samples], batch_first=True)


def marked(samples):
    """Begin each with a mark, fill them from the left, and order them alone."""
    rows = [torch.cat([torch.zeros(1), series]) for series, _ in sorted(samples, **LONGEST)]
    longest = max(map(len, rows))
    left = [torch.cat([torch.zeros(longest - len(row)), row]) for row in rows]
    return torch.stack(left), torch.tensor([label for _, label in samples])


def mixed_up(samples):
    """Give each series the class of the next one, as what does not fit: by no length."""
    series = [series for series, _ in samples]
    return pad_sequence(series[1:] + series[:1], batch_first=True), torch.tensor(
        [label for _, label in samples]
    )


class Collate:
    """A collate function that is an object."""

    def __call__(self, samples):
        """Order the series, and leave the classes."""
        return torn(samples)


def judge(
    collate, samples, *, workers: int = 0, probe: bool = True, trained: bool = True
) -> tuple[list[Probe], bool]:
    """Learn something while a loader serves, and return what was seen of what it collates."""
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with Recorder("x", probe=probe) as recorder:
        for _ in range(2):
            for _ in DataLoader(samples, 10, collate_fn=collate, num_workers=workers):
                if not trained:
                    continue
                optimizer.zero_grad()
                layer(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "collated"]
    return found, "collated" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize("collate", [torn, by_torch, packed, marked, Collate()])
def test_a_field_that_is_ordered_alone(collate) -> None:
    """By length, however the batch is made."""
    (probe,), looked = judge(collate, make_samples())
    assert looked
    assert probe.label == "entries 0 and 1 of its samples"
    assert 2 <= probe.measured < probe.reference == 16
    assert probe.source.startswith(__file__)


def test_series_of_several_columns() -> None:
    """Of shape (T, F), the moments first or the samples."""
    for first in (True, False):
        (_,), _ = judge(lambda s, first=first: torn(s, first=first), make_samples(shape=(3,)))


def test_workers_collate() -> None:
    """It is a child of the process itself that is asked."""
    (_,), _ = judge(torn, make_samples(), workers=1)


@pytest.mark.parametrize("collate", [whole, packed_by_itself, mixed_up, twice])
def test_fields_that_stay_together(collate) -> None:
    """Or were taken apart on purpose."""
    assert judge(collate, make_samples()) == ([], True)


def test_an_order_that_is_given_too() -> None:
    """Whoever has the order may put the others into it."""
    assert judge(with_order, make_samples()) == ([], False)


def test_samples_of_one_length() -> None:
    """Nothing is ordered by their length."""
    assert judge(torn, make_samples(length=6)) == ([], True)
    assert judge(mixed_up, make_samples(length=6)) == ([], True)


def test_samples_of_one_class() -> None:
    """None of them can be beside another one's."""
    samples = [(series, 1) for series, _ in make_samples()]
    assert judge(torn, samples) == ([], True)


def test_what_no_child_can_collate() -> None:
    """Whatever is raised there, the training goes on."""

    def refuse(samples):
        """Collate ten samples alone."""
        if len(samples) != 10:
            raise ValueError
        return torn(samples)

    samples = make_samples()
    assert judge(refuse, samples) == ([], False)
    assert judge(lambda batch: batch, samples) == ([], False)
    assert judge(None, make_samples(length=6)) == ([], False)
    unlike = [
        (series, label) if place % 2 else (series,) for place, (series, label) in enumerate(samples)
    ]
    assert judge(lambda batch: pad_sequence([s[0] for s in batch]), unlike) == ([], False)


def test_data_that_nothing_is_trained_on() -> None:
    """They are tried as well, and not told of."""
    assert judge(torn, make_samples(), trained=False) == ([], True)


def test_what_is_not_to_be_tried() -> None:
    """Without probes nothing is, and never what a library collates."""
    assert judge(torn, make_samples(), probe=False) == ([], False)


def test_each_function_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its loader is gone through, and only so many of them."""
    tries = []
    monkeypatch.setattr(collated_pairs, "fork", lambda *_: tries.append(1))
    judge(torn, make_samples())
    assert len(tries) == 1
    monkeypatch.setattr(collated_pairs, "_MOST", 0)
    judge(torn, make_samples())
    assert len(tries) == 1


ROWS = [np.array([1.0, 2, 3]), np.array([4.0]), np.array([5.0, 6])]
TURNED = np.array([[4.0, 0, 0], [5, 6, 0], [1, 2, 3]])
PLACES, KINDS = [*map(np.array, (0.0, 1, 2))], [*map(np.array, (7.0, 7, 7))]


def test_a_field_beside_one_that_is_the_same_for_all() -> None:
    """The same of all samples hides nothing of another field."""
    parts = [TURNED, np.array([7.0, 7, 7]), np.array([0.0, 1, 2])]
    assert find_torn([ROWS, KINDS, PLACES], parts) == (True, 3, "entries 0 and 2 of its samples")


def test_rows_that_tell_no_order() -> None:
    """One sample is there twice."""
    _, apart, _ = find_torn([ROWS, PLACES], [TURNED[[0, 0, 2]], np.arange(3.0)])
    assert apart == 0
