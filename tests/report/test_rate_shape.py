"""Shapes of learning rates, as usual schedules make them: each is named."""

from collections.abc import Callable
from math import cos, pi

import pytest

from trainguard.report.rate_shape import name_shape

STEPS = 240


def half(part: float) -> float:
    """Return half a cosine, from 1 at 0 to 0 at 1 and after."""
    return (1 + cos(pi * min(part, 1))) / 2


def warm(shape: Callable[[float], float]) -> Callable[[int], float]:
    """Return a schedule with a warm-up of 24 steps."""
    return lambda n: (n + 1) / 24 if n < 24 else shape((n - 24) / (STEPS - 24))


PLATEAU = ((0, 1.0), (70, 0.5), (90, 0.25), (170, 0.125))
SHAPES: dict[str, Callable[[int], float]] = {
    "constant at 0.001": lambda _: 1.0,
    "warm-up": lambda n: (n + 1) / 1000,
    "warm-up to step 23, then constant at 0.001": warm(lambda _: 1.0),
    "warm-up to step 23, then cosine to ": warm(half),
    "warm-up to step 23, then linear to ": warm(lambda part: 1 - part),
    "warm-up to step 23, then constant to step 180, then linear to ": lambda n: min(
        (n + 1) / 24, 1, (STEPS - n) / 60
    ),
    "warm-up to step 23, then inverse square root to ": lambda n: min(
        (n + 1) / 24, (24 / (n + 1)) ** 0.5
    ),
    "cosine to ": lambda n: half(n / 500),
    "cosine, then constant at 0.0001": lambda n: 0.1 + 0.9 * half(n / 160),
    "cosine, begun again 5 times": lambda n: half(n % 40 / 40),
    "cosine to 1.093e-05, moved every 16 steps": lambda n: half(n // 16 / 15),
    "exponential to ": lambda n: 0.99**n,
    "quadratic to ": lambda n: (1 - n / (STEPS + 1)) ** 2,
    "steps, 2 down to 9e-05": lambda n: 0.3 ** (n // 80),
    "steps, 1 down to 0.0001": lambda n: 1.0 if n < 150 else 0.1,
    "steps at uneven distances, as of a plateau, 3 down to 0.000125": lambda n: [
        rate for begin, rate in PLATEAU if begin <= n
    ][-1],
    "up and down": lambda n: 0.1 + abs(n % 40 - 20) / 20,
    "another shape to ": lambda n: 1 - 0.4 * (n / 240) - 0.5 * (n > 100) * (n - 100) / 140,
}


@pytest.mark.parametrize("digits", [7, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_named(shape: str, digits: int) -> None:
    """Whatever the digits that a log has of it."""
    told = [(n, float(f"{1e-3 * SHAPES[shape](n):.{digits - 1}e}")) for n in range(STEPS)]
    assert name_shape(told).startswith(shape)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_rows_of_a_long_log_lie_closer_at_its_beginning(shape: str) -> None:
    """There a rate of four digits stands still for many of them, and takes no steps."""
    steps = [*range(4096), *range(4096, 10**6, 61)]
    of = half if shape == "cosine" else lambda part: 1 - part
    told = [(n, float(f"{1e-3 * of(n / 1e6):.4e}")) for n in steps]
    assert name_shape(told).startswith(f"{shape} to ")


def test_a_few_rows_have_no_shape() -> None:
    """Nor have rates below zero."""
    assert name_shape([(n, 0.1) for n in range(4)]) == ""
    assert name_shape([(n, 0.1 - n / 10) for n in range(9)]) == ""


def test_a_shape_counts_in_the_unit_of_its_log() -> None:
    """Of a log with one row for each epoch."""
    told = [(float(n), min(n + 1, 3) / 3) for n in range(10)]
    assert name_shape(told, "epoch") == "warm-up to epoch 2, then constant at 1"
