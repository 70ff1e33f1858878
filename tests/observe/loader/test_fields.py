"""How batches of any nesting are read into fields, samples and fingerprints."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.observe.loader.fields import name_fields
from trainguard.observe.loader.fingerprints import reading, row_prints
from trainguard.observe.loader.layout import ReadBatch, laid_out, read

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    """A batch in a dataclass."""

    audio: torch.Tensor
    meta: dict


class Loose:
    """A batch in an object of its own kind."""

    def __init__(self) -> None:
        self.nodes, self._cache = X, X


RAGGED = [torch.randn(n, 2) for n in (3, 5, 2, 4)]


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (X, ["0"]),
        (np.zeros((4, 2)), ["0"]),
        ([X, Y], ["0", "1"]),
        ((X, {"a": Y, "b": [X, X]}), ["0", "1.a", "1.b.0", "1.b.1"]),
        ({"x": X, "none": None}, ["x"]),
        ({1: X}, ["1"]),
        (Pair(X, Y), ["x", "y"]),
        (Sample(X, {"label": Y}), ["audio", "meta.label"]),
        (Loose(), ["nodes"]),
        (((X, X), Y), ["0.0", "0.1", "1"]),
        ((tuple(RAGGED), Y), ["0", "1"]),
        ((tuple(torch.randn(3, 8, n) for n in (5, 6, 7, 8)), tuple({"l": Y} for _ in X)),
         ["0", "1.l"]),
        (RAGGED, ["0"]),
        (["a", "b"], ["0"]),
        ([{"x": X[0], "y": 1}, {"x": X[1], "y": 2}], ["x", "y"]),
        (pack_sequence(RAGGED, enforce_sorted=False), ["data", "lengths"]),
        (None, []),
        ({}, []),
    ],
)  # fmt: skip
def test_fields_are_named_by_their_paths(batch: Any, names: list[str]) -> None:
    """Tensors, dicts, tuples, named ones, dataclasses, lists of samples, and what is ragged."""
    assert list(name_fields(batch)) == names


def understood(batch: Any, split: str = "train", **declared) -> ReadBatch:
    """Read one batch as a declaration has it."""
    return read(batch, laid_out(tg.Loader([], **declared), split, batch), 0)


@pytest.mark.parametrize(
    ("batch", "declared", "roles"),
    [
        ([X, Y], {}, {"0": "input", "1": "label"}),
        ([X, Y.float()], {}, {"0": "input", "1": "input"}),
        ([X, ["a", "b", "c", "d"]], {}, {"0": "input", "1": "label"}),
        ([X, Y], {"labels": 0}, {"0": "label", "1": "input"}),
        ({"x": X, "target": Y, "idx": Y}, {}, {"x": "input", "target": "label", "idx": "other"}),
        ({"idx": Y}, {}, {"idx": "input"}),
        ({"x": X, "attention_mask": X > 0}, {}, {"x": "input", "attention_mask": "mask"}),
        ({"x": X, "valid": X > 0}, {"fields": {"valid": tg.mask("B T")}},
         {"x": "input", "valid": "mask"}),
        ({"x": X, "z": X}, {"inputs": "z"}, {"x": "other", "z": "input"}),
        ({"in": {"x": X}, "y": X}, {"labels": "in.x"}, {"in.x": "label", "y": "input"}),
        ({"in": {"x": X}, "begins": Y}, {"reset": "begins", "labels": "x"},
         {"in.x": "label", "begins": "reset"}),
    ],
)  # fmt: skip
def test_roles(batch: Any, declared: dict, roles: dict[str, str]) -> None:
    """What is declared goes before what names and places say; the last word of a path is enough."""
    assert understood(batch, **declared).layout.roles == roles


@pytest.mark.parametrize(
    ("batch", "declared", "size", "length"),
    [
        ([X, Y], {}, 4, 3),
        (RAGGED, {}, 4, 0),
        (torch.zeros(7, 4, 2), {"fields": {0: tg.real("T B C", -1, 1)}}, 4, 7),
        (torch.zeros(2, 5, 9), {"fields": {0: tg.real("B C T", -1, 1)}}, 2, 9),
        ({"x": torch.zeros(5, 2), "label": 3}, {}, 1, 0),
        (torch.zeros(9), {"fields": {0: tg.real("T", -1, 1)}}, 1, 0),
        ([1.5, 2.5, 3.5], {}, 3, 0),
    ],
)
def test_sizes(batch: Any, declared: dict, size: int, length: int) -> None:
    """The batch axis and the sequence axis are the declared ones, or the first and second."""
    seen = understood(batch, **declared)
    assert seen.size == size
    assert len(seen.prints) == size
    assert not length or seen.length == length


def test_a_field_of_other_dimensions_than_declared() -> None:
    """The sentence has both."""
    with pytest.raises(SubjectError, match=r"has the shape \(4, 3\), and 'B C T' is declared"):
        understood(X, fields={0: tg.real("B C T", -1, 1)})


def test_a_field_that_is_not_there() -> None:
    """The training must have it; a test without labels may be as it is."""
    with pytest.raises(SubjectError, match="have no field 'lable'"):
        understood({"x": X, "label": Y}, labels="lable")
    seen = understood({"x": X}, "test", labels="label", splits=("train", "test"))
    assert seen.labels == ()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("width", [1, 3, 1000, 5000, 20000, 20001])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_equal_rows_have_equal_fingerprints(width: int, kind: torch.dtype, exact: bool) -> None:
    """At any place in a batch, alone or beside others, in any memory layout."""
    with reading(exact):
        check_equal_rows(width, kind)


def check_equal_rows(width: int, kind: torch.dtype) -> None:
    """Compare the fingerprints of six rows, of which two are the same."""
    drawn = torch.randn(6, width, generator=torch.Generator().manual_seed(width))
    rows = drawn > 0 if kind == torch.bool else (drawn * 50).to(kind)
    rows[4] = rows[1]
    prints = row_prints([rows], 6)
    assert prints[4] == prints[1]
    assert row_prints([rows[1:2].clone()], 1) == (prints[1],)
    assert row_prints([rows.repeat(1, 2)[:, :width]], 6) == prints
    if width > 8:
        assert len(set(prints)) == 5


def test_fields_are_told_apart() -> None:
    """The same values in two fields are another sample than in the reverse order."""
    one, two = torch.randn(3, 4), torch.randn(3, 4)
    assert row_prints([one, two], 3) != row_prints([two, one], 3)
    assert row_prints([one, two], 3) != row_prints([one, one], 3)


def test_floats_of_few_bits_are_told_apart() -> None:
    """Rows of halves, ones and twos differ in the highest bits of their words alone."""
    rows = torch.zeros(1000, 4096)
    drawn = torch.randint(-1, 2, (1000, 2048), generator=torch.Generator().manual_seed(0))
    rows[:, 1::2] = 2.0**drawn
    for exact in (True, False):
        with reading(exact):
            assert len(set(row_prints([rows], 1000))) == 1000


def test_images_of_sparse_lines_are_told_apart() -> None:
    """A line at another place in a large blank image is another image, nearly always."""
    images = torch.zeros(128, 128, 128)
    images[torch.arange(128), torch.arange(128)] = 1.0
    assert len(set(row_prints([images], 128))) > 100
