"""Domains: what an input may be, in words, and what cannot be meant."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainguard as tg
from trainguard.core.errors import DeclarationError

WRONG = {
    "tg.real('B T', 6, -12)": (
        "tg.real got an empty range: low=6 is not below high=-12. Swap them: tg.real(..., -12, 6)."
    ),
    "tg.real('B', 1, 1)": "tg.real got an empty range: low=1 is not below high=1.",
    "tg.real('B', math.nan, 1)": "tg.real got an empty range: low=nan is not below high=1.",
    "tg.real('B', 0, math.inf)": (
        "tg.real has no finite range: low=0, high=inf."
        " Give the largest values that the component may meet."
    ),
    "tg.real('B', None, 1)": "tg.real got the bound None. Give a number.",
    "tg.real('B', 0, '1')": (
        "tg.real got the bound '1', which names no dimension."
        ' Give a number, or a size such as "C" or "C-1".'
    ),
    "tg.real('B', -1, 1, alive=(0, 2))": (
        "tg.real(alive=(0, 2)) does not lie inside [-1, 1]."
        " Name the part of the range in which a gradient is promised."
    ),
    "tg.real('B', -1, 1, alive=(0.5, 0.5))": (
        "tg.real(alive=(0.5, 0.5)) does not lie inside [-1, 1]."
        " Name the part of the range in which a gradient is promised."
    ),
    "tg.real(('B', 'T'), -1, 1)": (
        "A shape is a string of dimension names, and ('B', 'T') is none."
        ' Write it like "B T K", or "B 3" with a fixed size.'
    ),
    "tg.real('B,T', -1, 1)": (
        "The shape 'B,T' has the dimension 'B,T', which is neither a name nor a size above zero."
        ' Write it like "B T K", or "B 3" with a fixed size.'
    ),
    "tg.real('B 0', -1, 1)": (
        "The shape 'B 0' has the dimension '0', which is neither a name nor a size above zero."
        ' Write it like "B T K", or "B 3" with a fixed size.'
    ),
    "tg.integer('B', 0, 9.5)": "tg.integer got the bound 9.5. Give whole numbers.",
    "tg.integer('B', 9, 0)": (
        "tg.integer got an empty range: low=9 is not below high=0."
        " Swap them: tg.integer(..., 0, 9)."
    ),
    "tg.integer('B', 0, 'C+1')": (
        "tg.integer got the bound 'C+1', which names no dimension."
        ' Give a number, or a size such as "C" or "C-1".'
    ),
    "tg.bins('B', -1, 1, 1)": "tg.bins got count=1. Two values are the least there can be.",
    "tg.bins('B', 1, -1, 4)": (
        "tg.bins got an empty range: low=1 is not below high=-1. Swap them: tg.bins(..., -1, 1)."
    ),
    "tg.choice()": "tg.choice() has nothing to choose from. Give it a value or more.",
    "tg.choice('B T', 0.0, 1.0)": (
        "tg.choice('B T', 0.0, 1.0) would pass the word 'B T' itself. Where it is the shape of a"
        " tensor, say so: tg.choice(0.0, 1.0, shape='B T')."
    ),
    "tg.choice('mean', 'sum', shape='B')": (
        "tg.choice('mean', 'sum') with shape='B' would make a tensor of values that are no"
        " numbers. Leave the shape out to pass one of them as it is."
    ),
    "tg.mask('B ?')": (
        "The shape 'B ?' has the dimension '?', which is neither a name nor a size above zero."
        ' Write it like "B T K", or "B 3" with a fixed size.'
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_domain(code: str) -> None:
    """One sentence says what is wrong with the value, one the way out."""
    with pytest.raises(DeclarationError) as caught:
        eval(code, {"tg": tg, "math": math})
    assert str(caught.value) == WRONG[code]


def test_dimensions_become_sizes() -> None:
    """A name is its size, a number itself, and a bound may be a size or a size less something."""
    domain = tg.integer("B 3 T", "K - 2", "K")
    assert domain.names == ("B", "T")
    assert domain.dims({"B": 2, "T": 5}) == (2, 3, 5)
    assert domain.span({"K": 7}) == (5.0, 7.0)
    assert domain.list_values({"K": 7}) == (5.0, 6.0, 7.0)


def test_a_shape_of_no_dimension_is_one_number() -> None:
    """The empty shape is a scalar tensor."""
    assert tg.real("", 0, 1).dims({}) == ()


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 300))
def test_bins_are_evenly_spaced(low: float, width: float, count: int) -> None:
    """Listed bins begin and end at the range's ends and have one distance."""
    listed = tg.bins("B", low, low + width, count).list_values({})
    assert listed is not None
    assert (len(listed), listed[0], listed[-1]) == (count, low, low + width)
    steps = [b - a for a, b in pairwise(listed)]
    assert max(steps) - min(steps) <= 1e-9 * max(abs(low), width) + 1e-12


@pytest.mark.parametrize("padding", [False, True, 0, 1, 0.0, 1.0])
def test_a_mask_knows_what_marks_padding(padding: float) -> None:
    """What keeps a position is the other value, of the same type."""
    keep, marks = tg.mask("B T", padding=padding).values
    assert (marks, type(keep)) == (padding, type(padding))
    assert keep != padding


def test_what_cannot_be_listed() -> None:
    """A continuum lists no values, and a choice without a shape is no tensor."""
    assert tg.real("B", 0, 1).list_values({}) is None
    assert tg.choice("mean", "sum").shape is None
    assert tg.choice(1, 2, shape="B").shape == ("B",)
