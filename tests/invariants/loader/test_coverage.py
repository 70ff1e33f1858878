"""What is said of samples that are repeated, left out or shared, and of batch sizes."""

from random import Random

import pytest

from tests.invariants.loader.scans import by_index, epoch, twice
from tests.invariants.loader.tried import judged, ranks

NAME = "epoch_visits_each_sample_once"
SHARED = "splits_are_disjoint"
LAST = "last_batch_is_as_declared"
ALL = list(range(40))
ONCE = {"once:train": True}


def test_each_once_is_passed() -> None:
    """All indices in any order, and equal samples in a stream in both epochs."""
    assert judged(NAME, by_index(ALL, ALL[::-1], due=40, said=10), **ONCE) == []
    assert judged(NAME, twice([1, 1, 2, 2, *range(3, 39)], said=10), **ONCE) == []


@pytest.mark.parametrize(
    ("more", "promises", "found"),
    [
        ({}, ONCE, ["broken"]),
        ({}, {}, []),
        ({"split": "val"}, {}, ["note"]),
        ({"split": "val", "replaces": True}, {}, []),
        ({"replaces": True}, ONCE, ["broken"]),
        ({}, {"once:train": False}, []),
        ({"complete": False}, ONCE, []),
    ],
)
def test_repeated_indices(more: dict, promises: dict, found: list[str]) -> None:
    """Replacement is meant unless it is declared otherwise; an evaluation repeats by mistake."""
    drawn = [*ALL[:39], 7]
    repeated = [f for f in ranks(NAME, by_index(drawn, drawn, **more), **promises) if f]
    assert repeated == found


@pytest.mark.parametrize(
    ("more", "promises", "found"),
    [
        ({"drops": True}, ONCE, []),
        ({"drops": True, "split": "val"}, {}, ["note"]),
        ({"drops": True, "split": "val"}, {"last:val": "dropped"}, []),
        ({}, ONCE, ["broken"]),
        ({}, {}, []),
    ],
)
def test_indices_left_out(more: dict, promises: dict, found: list[str]) -> None:
    """What does not fill a batch may be dropped in training; nothing else is left out."""
    drawn = ALL[:36]
    assert ranks(NAME, by_index(drawn, drawn, due=39, **more), **promises) == found


@pytest.mark.parametrize(
    ("said", "more", "found"),
    [
        (10, {}, []),
        (-1, {}, []),
        (12, {}, ["broken"]),
        (8, {}, ["broken"]),
        (12, {"complete": False}, []),  # cut by us
        (8, {"complete": False}, ["broken"]),
        (12, {"kind": "stream", "workers": 2}, []),
        (13, {"kind": "stream", "workers": 2}, ["broken"]),
    ],
)
def test_a_length_that_lies(said: int, more: dict, found: list[str]) -> None:
    """Each worker of a stream may end with a short batch, which len() does not know of."""
    assert ranks(NAME, epoch(ALL, said=said, **more)) == found


def test_samples_picked_at_random_are_found() -> None:
    """Where indices are as they should be, samples that come more often in one epoch are not."""
    first = [1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11]
    second = [1, 2, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 12]
    assert ranks(NAME, twice(first, second), **ONCE) == ["broken"]
    assert judged(NAME, twice(first, second)) == []


def test_augmented_samples_and_silence_are_passed() -> None:
    """Samples that are new in each epoch, and silence that comes more often in one of them."""
    silent = [0] * 6 + list(range(1, 35))
    later = [0] * 9 + list(range(101, 132))
    assert judged(NAME, twice(silent, later), **ONCE) == []
    often = [0] * 9 + list(range(1, 32))
    assert judged(NAME, twice(silent, often), **ONCE) == []


@pytest.mark.parametrize(
    ("served", "more", "found"),
    [
        (100, {}, []),
        (120, {}, ["broken"]),
        (90, {}, ["broken"]),
        (97, {}, ["broken"]),
        (97, {"drops": True}, []),
        (90, {"complete": False}, []),
        (120, {"complete": False}, ["broken"]),
    ],
)
def test_a_number_of_samples_that_is_declared(served: int, more: dict, found: list[str]) -> None:
    """No more of them, and no fewer but for what does not fill a batch."""
    samples = {"samples:train": 100, "once:train": False}
    assert ranks(NAME, epoch(range(served), **more), **samples) == found


def test_a_sampler_of_ones_own_that_draws_by_chance() -> None:
    """As torch.randint would; weights, each class in turn, and a few of all are meant."""
    random = Random(0)
    drawn = [random.randrange(400) for _ in range(400)]
    (finding,) = judged(NAME, by_index(drawn, drawn, dataset=400))
    assert finding.rank.value == "note"
    assert "torch.randperm" in finding.why
    assert judged(NAME, by_index(drawn, drawn, dataset=400, replaces=True)) == []
    weighted = random.choices(range(400), [1] * 300 + [9] * 100, k=400)
    in_turn = [i for _ in range(4) for i in range(100)]
    for meant in (weighted, in_turn, drawn[:90], [*range(399), 0]):
        assert judged(NAME, by_index(meant, meant, dataset=400)) == []


def test_copies_that_come_again_in_each_epoch() -> None:
    """A tenth of a stream or more is no silence; data of few values repeat themselves."""
    copies = [*range(100), *range(20)]
    assert ranks(NAME, twice(copies, copies[::-1]), **ONCE) == ["note"]
    assert ranks(NAME, twice(copies, copies[::-1])) == []
    assert ranks(NAME, twice([*range(40)] * 3), **ONCE) == []


def both(train: list[int], val: list[int], **more) -> list:
    """Write one epoch of two splits."""
    return [*epoch(train, **more), *epoch(val, split="val", **more)]


def test_splits_apart_are_passed() -> None:
    """No common sample; or repeated ones, such as silence, in both."""
    assert judged(SHARED, both(ALL, list(range(100, 120)))) == []
    assert judged(SHARED, both([0, 0, *ALL[1:]], [0, 0, *range(100, 118)])) == []
    assert judged(SHARED, both([0, 0, *ALL[1:]], [0, *range(100, 118)])) == []


def test_shared_samples_are_found() -> None:
    """The finding says which splits, how many, and where the first is."""
    (finding,) = judged(SHARED, both(ALL, [38, 39, *range(100, 118)]))
    assert finding.rank.value == "broken"
    assert finding.measured == "2 of 20 different samples (10 %)"
    assert finding.at == "splits 'train' and 'val', batch 0, sample 0 of 'val'"


def test_one_picture_in_a_thousand_is_a_note() -> None:
    """Well-known datasets hold a few equal pictures in both splits."""
    val = [1, 2, *range(1000, 1998)]
    assert ranks(SHARED, both(list(range(999)), val)) == ["note"]


def test_few_discrete_features_are_passed() -> None:
    """Where half of the rows of a table are repeated, rows of another are among them by chance."""
    table = [n // 2 for n in range(20)] + list(range(100, 110))
    assert judged(SHARED, both(table, [100, 101, 102, 103, *range(200, 206)])) == []


def test_indices_of_one_dataset_are_proof() -> None:
    """One index in common is one too many; of two datasets it is no evidence."""
    train = epoch(ALL, indices=ALL, base=0)
    val = epoch([900, 901], split="val", indices=[39, 50], base=0)
    other = epoch([900, 901], split="val", indices=[39, 50], base=1)
    assert ranks(SHARED, [*train, *val]) == ["broken"]
    assert judged(SHARED, [*train, *other]) == []


def test_parts_of_a_training_may_overlap() -> None:
    """What is called train_eval shares samples with train on purpose."""
    events = [*epoch(ALL), *epoch(ALL[:8], split="train_eval")]
    assert judged(SHARED, events) == []


@pytest.mark.parametrize(
    ("samples", "more", "promises", "found"),
    [
        (40, {}, {"batch:train": 4}, []),
        (39, {}, {"batch:train": 4}, []),
        (39, {}, {"last:train": "short"}, []),
        (39, {}, {"last:train": "dropped"}, ["broken"]),
        (36, {"due": 39}, {"last:train": "dropped"}, []),
        (36, {"due": 39}, {"last:train": "short"}, ["broken"]),
        (36, {"due": 39, "complete": False}, {"last:train": "short"}, []),
        (40, {}, {"batch:train": 8}, ["broken"]),
        (40, {}, {"batch:train": 2}, ["broken"]),
        (3, {}, {"batch:train": 4}, []),  # a single short batch
    ],
)
def test_batches(samples: int, more: dict, promises: dict, found: list[str]) -> None:
    """Batches of four, the last one short or dropped."""
    assert ranks(LAST, epoch(ALL[:samples], **more), **promises) == found


def test_each_worker_of_a_stream_ends_with_a_short_batch() -> None:
    """Two workers, two short batches; a third one is not explained."""
    batches = [*epoch(ALL[:39]), *epoch(ALL[:39], kind="stream", workers=2)][:10]
    two = [*batches[:8], batches[9], batches[9]]
    three = [*two, batches[9]]
    told = epoch(ALL[:39], kind="stream", workers=2)[-1]
    assert judged(LAST, [*two, told], **{"batch:train": 4}) == []
    assert ranks(LAST, [*three, told], **{"batch:train": 4}) == ["broken"]


@pytest.mark.parametrize(
    ("train", "val", "found"),
    [
        (range(40), range(20), ["note"]),
        (range(40), range(35, 55), []),
        ([n % 5 for n in range(40)], range(5), []),
        (range(40), [n % 7 for n in range(20)], []),
        (range(40), range(5), []),
        (range(40), (), []),
        (range(40), [0, 0, 1, 1, *range(2, 10), *range(100, 108)], []),  # 8 of 18 come once
        (range(20), range(20), []),  # not known of all samples
    ],
)
def test_other_samples_with_the_same_labels(train: list, val: list, found: list[str]) -> None:
    """Labels that name a sample, and stand in two splits, are noted; classes are not."""
    count = len(val) or 20
    events = epoch(ALL, labels=list(train))
    events += epoch(range(100, 100 + count), split="val", labels=list(val))
    assert ranks(SHARED, events) == found
