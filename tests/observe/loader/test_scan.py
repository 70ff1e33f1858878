"""What the scan of a loader sees: epochs, indices, values, seams and padding."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Subset, TensorDataset, WeightedRandomSampler

import trainguard as tg
from tests.observe.loader.probed import rows
from trainguard.core.catalogue import find_invariants
from trainguard.core.settings import Settings
from trainguard.events.loader import Batch, Epoch, Field, Serving
from trainguard.events.trace import Trace
from trainguard.observe.loader.observer import LoaderObservation


def scanned(build: Any, **declared) -> list:
    """Scan a loader of a training."""
    subject = tg.Loader(build, **{"splits": ("train",), **declared})
    return list(LoaderObservation(subject, "cpu", "float32", Settings()).trace("scan"))


def of(events: list, kind: type) -> list:
    """Return the events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def served(events: list) -> dict[str, tuple[float, float]]:
    """Return what was counted, by quantity."""
    return {event.quantity: (event.measured, event.reference) for event in of(events, Serving)}


def test_two_epochs_and_what_the_loader_says_of_itself() -> None:
    """The events say how long an epoch is, what draws its samples and which they are."""
    data = rows(50)
    events = scanned(lambda: DataLoader(data, batch_size=8, shuffle=True, drop_last=True))
    first, second = of(events, Epoch)
    assert (first.batches, first.samples, first.said, first.dataset, first.due) == (
        6,
        48,
        6,
        50,
        50,
    )
    assert (first.kind, first.sampler) == ("map", "RandomSampler")
    assert first.drops
    assert first.complete
    assert (second.epoch, second.base) == (1, first.base)
    one, two = ([b for b in of(events, Batch) if b.epoch == n] for n in (0, 1))
    assert [b.index for b in one] == list(range(6))
    was = dict(
        zip([i for b in one for i in b.indices], [p for b in one for p in b.prints], strict=True)
    )
    now = dict(
        zip([i for b in two for i in b.indices], [p for b in two for p in b.prints], strict=True)
    )
    assert all(was[index] == now[index] for index in was.keys() & now.keys())
    assert len(set(was.values())) == 48


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_are_those_of_the_dataset_behind_subsets(workers: int) -> None:
    """A subset of a subset is told in the numbers of the data that both are parts of."""
    part = Subset(Subset(rows(40), list(range(10, 30))), [5, 0, 7])
    events = scanned(lambda: DataLoader(part, batch_size=2, num_workers=workers))
    assert [b.indices for b in of(events, Batch)][:2] == [(15, 10), (17,)]


def test_subsets_of_one_dataset_have_one_base() -> None:
    """Equal numbers of two datasets are told apart."""
    one, other = rows(40), rows(40)
    made = {"train": Subset(one, range(9)), "val": Subset(one, range(9, 20)), "test": other}
    loaders = {name: DataLoader(part, batch_size=4) for name, part in made.items()}
    events = scanned(loaders, splits=("train", "val", "test"))
    bases = {epoch.split: epoch.base for epoch in of(events, Epoch)}
    assert bases["train"] == bases["val"] != bases["test"]


def test_samplers_that_replace_are_known() -> None:
    """By weights, or by name."""
    weighted = WeightedRandomSampler(torch.ones(40), 40)
    for sampler, replaces in ((weighted, True), (None, False)):
        events = scanned({"train": DataLoader(rows(), batch_size=8, sampler=sampler)})
        assert of(events, Epoch)[0].replaces is replaces


def test_a_loader_is_as_it_was_after_the_scan() -> None:
    """Sampler, generator and the stream of random numbers go on as if nothing had happened."""
    generator = torch.Generator().manual_seed(3)
    given = DataLoader(rows(), batch_size=8, shuffle=True, generator=generator)
    sampler, state = given.batch_sampler, generator.get_state().clone()
    before = torch.random.get_rng_state().clone()
    scanned({"train": given})
    assert given.batch_sampler is sampler
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_few_batches_are_served_until_chance_is_ruled_out() -> None:
    """Two batches in one order, twenty times and more; an order that changes ends it at once."""
    fixed = BatchSampler(range(12), 6, drop_last=False)
    data = rows(12)
    events = scanned(lambda: DataLoader(data, batch_sampler=fixed))
    assert len(of(events, Epoch)) == 21
    assert len(of(scanned(lambda: DataLoader(data, batch_size=6, shuffle=True)), Epoch)) == 2
    told = scanned(lambda: DataLoader(data, batch_size=6), splits={"train": {"shuffled": False}})
    assert len(of(told, Epoch)) == 2


def test_values_are_added_up() -> None:
    """Range, mean, zeros, and what is not finite or outside of what is declared."""
    x = torch.linspace(-1, 1, 4000).view(40, 100)
    x[21, 7], x[9, 3] = torch.nan, 5.0
    data = TensorDataset(x, torch.arange(40) % 5)
    fields = {0: tg.real("B T", -1, 1), 1: tg.integer("B", 0, 3)}
    splits = {"train": {"shuffled": False}}
    events = scanned(lambda: DataLoader(data, batch_size=8), fields=fields, splits=splits)
    values, labels = of(events, Field)
    assert (values.bad, values.at) == (2, "epoch 0, batch 2, sample 5")
    assert (values.outside, values.first) == (1, 5.0)
    assert (values.low, values.high) == (-1.0, 5.0)
    assert (labels.role, labels.outside, labels.at) == ("label", 8, "epoch 0, batch 0, sample 4")
    assert (labels.low, labels.high, labels.zeros, labels.whole) == (0, 4, 8, True)


def test_ignored_labels_and_added_masks_are_meant() -> None:
    """-100 is no label, and minus infinity beside zero no number."""
    labels = torch.arange(40) % 4
    labels[::7] = -100
    added = torch.zeros(40, 6).masked_fill(torch.ones(40, 6).tril() == 0, -torch.inf)
    data = TensorDataset(torch.randn(40, 6), added, labels)
    build = lambda: DataLoader(data, batch_size=8)  # noqa: E731
    events = scanned(build, fields={2: tg.integer("B", 0, 3)}, labels=2)
    assert [(field.bad, field.outside) for field in of(events, Field)] == [(0, 0)] * 3


def test_nan_in_a_later_epoch_is_seen() -> None:
    """Augmentation may go wrong at any time."""
    epochs = iter([0.0, torch.nan])

    class Loader:
        """Serves a value of its own in each epoch."""

        def __iter__(self):
            """Serve two batches."""
            value = next(epochs)
            yield from [torch.randn(4, 3) + value, torch.randn(4, 3)]

    (field,) = of(scanned({"val": Loader()}, splits=("val",)), Field)
    assert (field.bad, field.at) == (12, "epoch 1, batch 0, sample 0")


def stream(rows_: torch.Tensor, chunk: int, reset: bool = False):
    """Return the chunks of some rows, in order."""
    parts = rows_.split(chunk, dim=1)
    if reset:
        return [{"x": part, "reset": torch.tensor(n == 0)} for n, part in enumerate(parts)]
    return [{"x": part} for part in parts]


WAVES = torch.sin(torch.arange(2000.0) * torch.tensor([[0.01], [0.03]]))


def test_seams_of_a_signal() -> None:
    """Chunks in order hold at every seam; in another order most do not."""
    chunks = stream(WAVES, 100)
    torn = [chunks[i] for i in torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    assert served(scanned({"train": chunks}, chunks="stream"))["seam by signal"] == (0, 38)
    bad, total = served(scanned({"train": torn}, chunks="stream"))["seam by signal"]
    assert (bad > 19, total) == (True, 38)


def test_noise_has_no_seams() -> None:
    """Where a signal is rough, a jump says nothing."""
    told = served(scanned({"train": stream(torch.randn(2, 2000), 100)}, chunks="stream"))
    assert "seam by signal" not in told
    assert told["seam by followers"] == (0, 38)


def test_seams_of_targets_and_declared_resets() -> None:
    """The last target is the first input of the next chunk, but where a reset is declared."""
    text = torch.randint(0, 50, (4, 401), generator=torch.Generator().manual_seed(0))
    batches = [
        {
            "x": text[:, i : i + 40],
            "y": text[:, i + 1 : i + 41],
            "begins": torch.tensor([i == 120] * 4),
        }
        for i in (0, 40, 80, 120, 160, 240, 280)
    ]
    declared = {"chunks": "stream", "labels": "y", "reset": "begins"}
    told = served(scanned({"train": batches}, **declared))
    assert told["seam by targets"] == (4, 20)
    assert told["reset by targets"] == (4, 4)


PADDED = torch.arange(1, 25).repeat(8, 1)
KEPT = torch.arange(24) < torch.arange(16, 24).unsqueeze(1)
PADDED = PADDED.masked_fill(~KEPT, 0)


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (KEPT, {"padding": (36, 192), "inverted": (0, 7), "cut": (0, 7)}),
        (~KEPT, {"padding": (36, 192), "inverted": (7, 8), "cut": (0, 8)}),
        (KEPT.roll(-1, 1) & KEPT, {"padding": (44, 192), "inverted": (0, 8), "cut": (8, 8)}),
        (torch.ones_like(KEPT), {"padding": (0, 192), "uncovered": (6, 8)}),
    ],
)
def test_masks_against_what_they_cover(mask: torch.Tensor, told: dict) -> None:
    """A mask that is right, the reverse of it, one that is a step short, and one of ones."""
    fields = {"tokens": tg.integer("B T", 0, 99), "mask": tg.mask("B T")}
    batches = [{"tokens": PADDED, "mask": mask}]
    assert served(scanned({"val": batches}, splits=("val",), fields=fields, mask="mask")) == told


def test_padding_without_a_mask() -> None:
    """Ends of one value are padding where the sequence is declared."""
    clips = torch.nn.functional.pad(torch.rand(6, 75), (0, 25))
    fields = {0: tg.real("B T", -1, 1)}
    assert served(scanned({"val": [clips]}, splits=("val",), fields=fields)) == {
        "padding": (150, 600)
    }
    assert served(scanned({"val": [clips]}, splits=("val",))) == {}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_rows_that_end_in_values_of_their_own_are_not_padded(kind: torch.dtype) -> None:
    """Held for ever at its last value: only what all rows have in common is padding."""
    codes = (torch.arange(5 * 60) % 7 % 2).view(5, 60)
    codes[:, 50:] = torch.tensor([0, 0, 1, 0, 1])[:, None]
    codes[4, -2] = 0
    fields = {0: tg.integer("B T", 0, 1)}
    seen = served(scanned({"val": [codes.to(kind)]}, splits=("val",), fields=fields))
    runs = [int((row != row[-1]).nonzero().max()) for row in codes[[0, 1, 3]]]
    assert seen == {"padding": (sum(59 - last for last in runs), 300)}


def test_a_batch_sampler_tells_no_number_of_samples() -> None:
    """Its length is that of batches: what it leaves out of a test split is told."""
    batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
    events = scanned(lambda: DataLoader(rows(11), batch_sampler=batches), splits=("test",))
    (first, _) = of(events, Epoch)
    assert (first.due, first.dataset, first.samples) == (-1, 11, 8)
    judge = find_invariants("epoch_visits_each_sample_once")[0].judge
    (finding,) = judge(Trace("x", tuple(events)))
    assert (finding.rank.value, str(finding.measured)) == ("note", "8 of 11 samples visited")
