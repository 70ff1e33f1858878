"""Operations on arrays of bytes, whose results do not fit into bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainguard.observe.tools.wrapping_bytes import find_operations

PICTURES = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
TENSOR = torch.from_numpy(PICTURES.copy())
RISING = np.arange(100, dtype=np.uint8).reshape(20, 5)
MASKS = (PICTURES > 100).astype(np.uint8)
HALVES = PICTURES // 2
MEAN = np.full((4, 4), 120, np.uint8)
INNER = SimpleNamespace(data=PICTURES)
HELD = SimpleNamespace(data=PICTURES, several=[PICTURES[0], PICTURES[1]], inner=INNER)


def of_neighbours(i):
    """Take the difference in the statement that returns it."""
    return PICTURES[i + 1] - PICTURES[i]


def of_tensors(i):
    """Take that of tensors, and use it at once."""
    return (TENSOR[i + 1] - TENSOR[i]).float() / 255


def by_names(i):
    """Take it of variables."""
    first, second = PICTURES[i], None
    one = HELD.data[i].copy()
    other = np.roll(one, 1)
    for _ in range(2):
        if i:
            moved = one - other
    return first, second, moved


def of_attributes(i):
    """Take it of what objects hold."""
    return HELD.several[i] - HELD.inner.data[i]


def in_place(i):
    """Subtract in place."""
    one = PICTURES[i].copy()
    one -= MEAN
    return one


def as_sums(i):
    """Take a mean of two in bytes."""
    return (PICTURES[i] + PICTURES[i + 1]) // 2


def as_products(i):
    """Take a product."""
    return np.abs(PICTURES[i] * PICTURES[i])


WRAPPED = [of_neighbours, of_tensors, by_names, of_attributes, in_place, as_sums, as_products]


def of_floats(i):
    """Take the difference of other numbers."""
    one = PICTURES[i].astype(np.float32)
    return one - PICTURES[i + 1].astype(np.float32)


def made_anew(i):
    """Take that of a variable that is something else by then."""
    one = PICTURES[i]
    one = one / 255
    return one - PICTURES[i]


def of_rising(i):
    """Take that of numbers that rise."""
    return RISING[i + 1] - RISING[i]


def of_halves(i):
    """Take that of larger numbers and smaller ones."""
    return PICTURES[i] - HALVES[i]


def of_masks(i):
    """Take that of masks."""
    return MASKS[i + 1] - MASKS[i]


def known(i):
    """Know of it."""
    larger = np.where(PICTURES[i] > MEAN, PICTURES[i] - MEAN, MEAN - PICTURES[i])
    least = np.minimum(PICTURES[i] - MEAN, MEAN - PICTURES[i])
    rest = (PICTURES[i] + MEAN) % 2
    one = PICTURES[i] - MEAN if i < 0 else MEAN
    return larger, least, rest, one


def beside_numbers(i):
    """Compute with single numbers, and with what functions return."""
    return PICTURES[i] - 3, PICTURES[i] - PICTURES.mean(), PICTURES[i] / MEAN


def as_signed(i):
    """Read the same bytes as other numbers."""
    return TENSOR[i].view(torch.int8) - TENSOR[i + 1].view(torch.int8)


def of_strangers(i, other):
    """Compute with what is not known."""
    return other[i] - PICTURES[i]


FINE = [as_signed, of_floats, made_anew, of_masks, known, beside_numbers, of_strangers]


@pytest.mark.parametrize("function", WRAPPED)
def test_what_does_not_fit(function) -> None:
    """It begins anew, and where is said."""
    (found,) = find_operations(function.__code__, globals())
    assert 0 < found.wrapped <= found.looked
    assert found.line > function.__code__.co_firstlineno
    assert any(sign in found.text for sign in "-+*")


@pytest.mark.parametrize("function", FINE)
def test_what_fits_or_is_known(function) -> None:
    """There is nothing to judge."""
    assert list(find_operations(function.__code__, globals())) == []


@pytest.mark.parametrize("function", [of_rising, of_halves])
def test_what_always_fits(function) -> None:
    """It was looked at."""
    (found,) = find_operations(function.__code__, globals())
    assert found.wrapped == 0 < found.looked


def test_a_variable_that_lives() -> None:
    """A name that is given once stands for the array that it is now."""
    (found,) = find_operations(of_living.__code__, globals() | {"one": PICTURES})
    assert found.text == "one[1:] - one[:-1]"


def of_living(load):
    """Take what a function returns."""
    one = load()
    return one[1:] - one[:-1]


def test_parts_of_another_shape() -> None:
    """What cannot be computed of the whole is not judged."""
    assert list(find_operations(of_shapes.__code__, globals())) == []


def of_shapes(i):
    """Take the difference of parts."""
    return RISING[i] - PICTURES[0, 0, i]


def test_a_variable_that_becomes_bytes() -> None:
    """A name that is given twice is not what it is now."""
    assert list(find_operations(of_becoming.__code__, globals() | {"one": PICTURES})) == []


def of_becoming(load):
    """Take what a function returns, and other numbers later."""
    one = load()
    moved = one[1:] - one[:-1]
    one = PICTURES
    return moved, one
