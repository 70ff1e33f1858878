"""What is said of lengths, seams and padding."""

import pytest

from tests.invariants.loader.scans import lengths, served
from tests.invariants.loader.tried import judged, ranks

CHUNK = "chunk_length_matches_split"
SEAMS = "chunks_are_contiguous"


@pytest.mark.parametrize(
    "values",
    [
        [200] * 20,
        [200] * 20 + [192],
        [200, 200, 50] * 7,
        [200],
        [120],  # one batch of short sequences
        [120, 80, 133, 97, 150, 60],
        [150, 90, 150, 100, 120, 80],
    ],
)
def test_declared_lengths_and_what_is_left_are_passed(values: list[int]) -> None:
    """Full chunks, shorter last ones, and sequences that are all shorter and of many lengths."""
    assert judged(CHUNK, lengths(values, "val"), **{"chunk:val": 200}) == []


@pytest.mark.parametrize("values", [[2000] * 4, [200, 200, 201], [100] * 20, [100] * 20 + [40]])
def test_another_length_is_found(values: list[int]) -> None:
    """Longer ones, and ones that are all shorter alike."""
    assert ranks(CHUNK, lengths(values, "val"), **{"chunk:val": 200}) == ["broken"]


def test_the_length_of_another_split_is_named() -> None:
    """The message says whose length it is, and gives both in steps."""
    promises = {"chunk:train": 2000, "chunk:val": 200}
    (finding,) = judged(CHUNK, lengths([2000] * 4, "val"), **promises)
    assert (finding.measured, finding.allowed) == ("2000 steps", "200 steps")
    assert "'train'" in finding.why


def test_several_loaders_of_a_split_share_its_promise() -> None:
    """What is declared of val holds for val.1, and nothing is said of a split without a chunk."""
    events = [*lengths([2000] * 4, "val.1"), *lengths([5] * 4, "test")]
    (finding,) = judged(CHUNK, events, **{"chunk:val": 200})
    assert "val.1" in finding.at


@pytest.mark.parametrize(
    ("kind", "torn", "seams", "detail", "found"),
    [
        ("seam by targets", 0, 90, "with resets", []),
        ("seam by targets", 1, 90, "with resets", ["broken"]),
        ("seam by targets", 45, 90, "without resets", []),
        ("seam by targets", 46, 90, "without resets", ["broken"]),
        ("seam by signal", 18, 90, "with resets", []),
        ("seam by signal", 19, 90, "with resets", ["broken"]),
        ("seam by signal", 3, 3, "with resets", []),
        ("seam by followers", 45, 90, "without resets", []),
        ("seam by followers", 80, 90, "without resets", ["broken"]),
        ("reset by targets", 45, 90, "with resets", []),
        ("reset by targets", 80, 90, "with resets", ["note"]),
        ("reset by targets", 3, 3, "with resets", []),
    ],
)
def test_seams(kind: str, torn: int, seams: int, detail: str, found: list[str]) -> None:
    """Targets prove every seam, signals and followers most of them; resets are half of them."""
    assert ranks(SEAMS, served(kind, torn, seams, detail), chunks="stream") == found


@pytest.mark.parametrize(
    ("share", "promises", "found"),
    [
        (0.39, {}, []),
        (0.41, {}, ["note"]),
        (0.41, {"limit:padding_is_bounded": 0.5}, []),
        (0.21, {"limit:padding_is_bounded": 0.2}, ["broken"]),
    ],
)
def test_padding(share: float, promises: dict, found: list[str]) -> None:
    """Much padding is a note, and broken where a limit is declared."""
    events = served("padding", 1000 * share, 1000, "by the mask")
    assert ranks("padding_is_bounded", events, **promises) == found


@pytest.mark.parametrize("kind", ["inverted", "cut", "uncovered"])
@pytest.mark.parametrize(
    ("rows", "detail", "found"),
    [
        (9, "declared", []),
        (11, "declared", ["broken"]),
        (11, "found", ["note"]),
    ],
)
def test_masks(kind: str, rows: int, detail: str, found: list[str]) -> None:
    """A declared mask is broken by one row in ten, one known by its name is a note."""
    assert ranks("padding_is_masked", served(kind, rows, 100, detail)) == found


def test_one_row_of_few_is_no_evidence() -> None:
    """One odd row in five may be what the data holds."""
    assert judged("padding_is_masked", served("cut", 1, 5, "declared")) == []
