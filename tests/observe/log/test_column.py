"""A column of a log keeps the same points, however many rows it is given at once."""

import random
from itertools import islice
from math import inf, nan

import pytest

from trainguard.observe.log.column import LoggedColumn
from trainguard.observe.log.roles import Meaning

ROWS = 40_000  # more than are all kept


def column(rows: list[tuple[float, float, float]], together: int) -> LoggedColumn:
    """Return a column that was given so many rows at once."""
    made, left = LoggedColumn("loss", Meaning("loss")), iter(rows)
    while part := list(islice(left, together)):
        made.add(*zip(*part, strict=True))
    return made.finish()


@pytest.mark.parametrize("odd", [(), (nan,), (inf, -inf), (0.0, -1.0), (50.0,)])
def test_rows_at_once_are_rows_one_by_one(odd) -> None:
    """Smooth stretches are taken in faster; leaps, zeros, no numbers and rewinds are not lost."""
    dice = random.Random(len(odd))
    step, value, rows = 0.0, 1.0, list[tuple[float, float, float]]()
    for number in range(ROWS):
        step += dice.choice((1, 1, 2)) - (dice.random() < 1e-4) * dice.randint(1, 50)
        value *= 1 + dice.uniform(-0.01, 0.01)
        told = dice.choice(odd) if odd and dice.random() < 1e-4 else value
        rows.append((step, told, float(number)))
    assert repr(column(rows, 512)) == repr(column(rows, 1))
