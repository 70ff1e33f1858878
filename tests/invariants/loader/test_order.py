"""What is said of the order of epochs."""

import pytest

from tests.invariants.loader.scans import by_index, epoch, twice
from tests.invariants.loader.tried import judged, ranks

NAME = "epochs_are_reshuffled"
EVALUATION = "evaluation_order_is_fixed"
SAMPLES = list(range(1, 49))
OTHER = SAMPLES[::-1]
SHUFFLED = {"shuffled:train": True}


def test_another_order_is_passed() -> None:
    """Two orders of the same samples, and samples that never come again the same."""
    assert judged(NAME, twice(SAMPLES, OTHER), **SHUFFLED) == []
    assert judged(NAME, twice(SAMPLES, [s + 1000 for s in SAMPLES]), **SHUFFLED) == []


@pytest.mark.parametrize(
    ("promises", "more", "found"),
    [
        (SHUFFLED, {}, ["broken"]),
        ({}, {"sampler": "RandomSampler"}, ["broken"]),
        ({}, {"sampler": "SequentialSampler"}, ["note"]),
        ({}, {}, ["note"]),
        ({}, {"split": "val"}, []),
        ({}, {"split": "batches"}, []),
        ({"shuffled:train": False}, {}, []),
        ({"chunks": "stream"}, {}, []),
        (SHUFFLED, {"complete": False, "said": -1}, []),
        (SHUFFLED, {"complete": False, "said": 900}, ["broken"]),
    ],
)
def test_the_same_order(promises: dict, more: dict, found: list[str]) -> None:
    """It is broken where a shuffle is meant, a note for training, and meant elsewhere."""
    assert ranks(NAME, twice(SAMPLES, **more), **promises) == found


def test_augmented_samples_are_compared_by_index() -> None:
    """Samples that differ each time do not hide that the indices are the same."""
    order = [5, 3, 8, 1, 9, 0, 2, 4, 6, 7, 11, 10] * 4
    events = [
        *epoch(SAMPLES, 0, indices=order, sampler="RandomSampler"),
        *epoch(OTHER, 1, indices=order, sampler="RandomSampler"),
    ]
    assert ranks(NAME, events) == ["broken"]


def test_a_distributed_sampler_that_does_not_shuffle_is_a_note_only() -> None:
    """Ascending indices are what shuffle=False gives; others are a shuffle that never changes."""
    rising, fixed = list(range(40)), [*range(20, 40), *range(20)]
    sampler = {"sampler": "DistributedSampler"}
    assert ranks(NAME, by_index(rising, rising, **sampler)) == ["note"]
    assert ranks(NAME, by_index(fixed, fixed, **sampler)) == ["broken"]


@pytest.mark.parametrize(
    ("samples", "size", "epochs", "found"),
    [
        (9, 1, 2, []),  # too few samples
        (48, 48, 2, []),  # one batch has no order
        (48, 8, 2, []),  # six batches come in the same order one time in 720
        (48, 8, 4, ["broken"]),
        (48, 4, 2, ["broken"]),
    ],
)
def test_chance_is_allowed_for(samples: int, size: int, epochs: int, found: list[str]) -> None:
    """The order of few batches is the same again by chance, once in so many times."""
    events = [e for n in range(epochs) for e in epoch(SAMPLES[:samples], n, size=size)]
    assert ranks(NAME, events, **SHUFFLED) == found


def test_an_evaluation_in_one_order_is_passed() -> None:
    """The same twice is what is asked for; a training is not judged."""
    assert judged(EVALUATION, twice(SAMPLES, split="val")) == []
    assert judged(EVALUATION, twice(SAMPLES, OTHER, split="train")) == []
    assert judged(EVALUATION, twice(SAMPLES, OTHER, split="val"), **{"shuffled:val": True}) == []


@pytest.mark.parametrize(("promises", "rank"), [({}, "note"), ({"shuffled:val": False}, "broken")])
def test_an_evaluation_in_another_order(promises: dict, rank: str) -> None:
    """It is a note, unless the order was promised."""
    assert ranks(EVALUATION, twice(SAMPLES, OTHER, split="val"), **promises) == [rank]


def test_an_evaluation_on_other_inputs_is_noted() -> None:
    """The same indices with other fingerprints: random crops, even where the order was promised."""
    order = list(range(48))
    events = [
        *epoch(SAMPLES, 0, split="test", indices=order),
        *epoch(SAMPLES[:40] + OTHER[:8], 1, split="test", indices=order),
    ]
    (finding,) = judged(EVALUATION, events, **{"shuffled:test": False})
    assert finding.rank.value == "note"
    assert finding.measured == "8 of 48 samples differ (16.7 %)"


def test_a_stream_of_other_samples_is_no_order() -> None:
    """Without indices, other samples are another draw, of which nothing is known."""
    assert judged(EVALUATION, twice(SAMPLES, [s + 1000 for s in SAMPLES], split="val")) == []


def test_an_evaluation_that_was_not_seen_to_its_end() -> None:
    """It is judged by the part that was: one in the same order, and one in another."""
    cut = {"split": "val", "complete": False}
    first = epoch(SAMPLES, 0, split="val", indices=SAMPLES)
    same = epoch(SAMPLES[:24], 1, indices=SAMPLES[:24], **cut)
    other = epoch(OTHER[:24], 1, indices=OTHER[:24], **cut)
    assert judged(EVALUATION, [*first, *same]) == []
    assert ranks(EVALUATION, [*first, *other]) == ["note"]
    unknown = [*epoch(SAMPLES, 0, split="val"), *epoch(OTHER[:24], 1, **cut)]
    assert judged(EVALUATION, unknown) == []
