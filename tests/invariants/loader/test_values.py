"""What is said of the values of fields, and of labels."""

import pytest

from tests.invariants.loader.scans import epoch, field
from tests.invariants.loader.tried import judged, ranks

FINITE = "values_are_finite"
SCALE = "modalities_share_a_scale"
FOLLOW = "labels_follow_inputs"
SAMPLES = list(range(1, 41))
LABELS = [n % 4 for n in SAMPLES]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, []),
        ({"bad": 1}, ["broken"]),
        ({"bad": 1, "role": "label"}, ["note"]),
        ({"bad": 1, "role": "mask"}, []),
        ({"outside": 3, "first": 2.0}, ["broken"]),
        ({"outside": 3, "first": 2.0, "role": "label"}, []),
    ],
)
def test_values(more: dict, found: list[str]) -> None:
    """One value is enough; missing labels are a note, and masks hold what they like."""
    assert ranks(FINITE, [field(**more)]) == found


def test_labels_outside_their_range_are_found() -> None:
    """The message has the first one, the range that was met and the one that was declared."""
    label = field("inputs.label", role="label", outside=3, first=10.0, low=1.0, high=10.0)
    promises = {"labels": ("label",), "low:label": 0, "high:label": 9}
    (finding,) = judged("labels_are_in_range", [label], **promises)
    assert finding.measured == "10 (3 values, 1 to 10)"
    assert finding.allowed == "0 to 9"
    assert judged("labels_are_in_range", [field(role="label")], **promises) == []


def modalities(**sizes: float) -> list:
    """Write the fields of several modalities, each by its deviation."""
    return [field(name, deviation=size) for name, size in sizes.items()]


NAMED = {"modalities": ("a", "b")}


def test_modalities_of_like_size_are_passed() -> None:
    """A factor of 100 is allowed, and a field that is no modality does not count."""
    assert judged(SCALE, modalities(a=1.0, b=99.0, time=1e9), **NAMED) == []
    assert ranks(SCALE, modalities(a=1.0, b=101.0), **NAMED) == ["broken"]
    limit = {"limit:modalities_share_a_scale": 10.0}
    assert ranks(SCALE, modalities(a=1.0, b=99.0), **NAMED, **limit) == ["broken"]


def test_whole_numbers_are_looked_up() -> None:
    """Codes of an integer type have no size; as floats they have, and the message says so."""
    codes = {"deviation": 300.0, "mean": 512.0, "low": 0.0, "high": 1023.0, "whole": True}
    assert judged(SCALE, [field("a"), field("b", dtype="int64", **codes)], **NAMED) == []
    (finding,) = judged(SCALE, [field("a"), field("b", **codes)], **NAMED)
    assert "perhaps category codes stored as floats" in finding.why


def test_zeros_have_no_size() -> None:
    """A one-hot field is as large as its ones, however many zeros there are."""
    sparse = field("b", mean=0.001, deviation=0.0316, zeros=999, low=0.0)
    assert judged(SCALE, [field("a", deviation=3.0), sparse], **NAMED) == []


def test_labels_that_follow_are_passed() -> None:
    """The same pairs in another order; and equal inputs with two labels in both epochs."""
    events = [
        *epoch(SAMPLES, 0, labels=LABELS),
        *epoch(SAMPLES[::-1], 1, labels=LABELS[::-1]),
    ]
    assert judged(FOLLOW, events, labels=("y",)) == []
    equal, labels = [1, 1, 2, 2, 3, 3, 4, 5], [0, 1, 0, 1, 0, 1, 0, 0]
    swapped = [1, 0, 1, 0, 1, 0, 0, 0]
    events = [*epoch(equal, 0, labels=labels), *epoch(equal, 1, labels=swapped)]
    assert judged(FOLLOW, events, labels=("y",)) == []


@pytest.mark.parametrize(("promises", "rank"), [({"labels": ("y",)}, "broken"), ({}, "note")])
def test_labels_shuffled_apart_are_found(promises: dict, rank: str) -> None:
    """Labels that were not declared may be something else, which is drawn anew."""
    events = [
        *epoch(SAMPLES, 0, labels=LABELS),
        *epoch(SAMPLES, 1, labels=LABELS[1:] + LABELS[:1]),
    ]
    assert ranks(FOLLOW, events, **promises) == [rank]


def test_one_sample_of_two_is_no_evidence_where_samples_are_dropped() -> None:
    """Of two equal inputs with two labels, each epoch may have dropped another one."""
    later = [*(label + 1 for label in LABELS[:3]), *LABELS[3:]]
    for drops, found in ((True, []), (False, ["broken"])):
        events = [
            *epoch(SAMPLES, 0, labels=LABELS, drops=drops),
            *epoch(SAMPLES, 1, labels=later, drops=drops),
        ]
        assert ranks(FOLLOW, events, labels=("y",)) == found


def test_classes_that_each_split_numbers_by_itself_are_noted() -> None:
    """Shared inputs with other labels, where nothing is repeated inside the splits."""
    train = epoch(SAMPLES, labels=LABELS)
    val = epoch(SAMPLES[:8], split="val", labels=[n + 10 for n in LABELS[:8]])
    same = epoch(SAMPLES[:8], split="val", labels=LABELS[:8])
    assert ranks(FOLLOW, [*train, *val], labels=("y",)) == ["note"]
    assert judged(FOLLOW, [*train, *same], labels=("y",)) == []
