"""Edits that Hypothesis draws, of which the smallest that breaks a relation is found."""

from collections.abc import Callable, Mapping
from random import Random

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample, Unsatisfiable

from trainguard.observe.tools.structure import SHRINKING, settings

_DRAWN = 24  # edits, while none breaks the relation: a second or two of children
_ASKED = 120  # of all; to make one smaller took 15 to 70 where one place of 60 mattered
_DIFFERENT = 4  # values that go to places in turn
Edit = Mapping[int, int]  # which value goes to which place, both as numbers


class ForkedWithin(BaseException):
    """Leads a child out of what draws, which catches no such thing; it goes on as what it is."""


def find_smallest(places: int, values: int, breaks: Callable[[Edit], bool]) -> Edit | None:
    """Return the edit of fewest places in a row, and of first values, that breaks a relation."""
    known: dict[tuple[tuple[int, int], ...], bool] = {}

    def is_broken(edit: Edit) -> bool:
        """Ask for each edit once, and for so many; the same answer comes to the same edit."""
        key = tuple(sorted(edit.items()))
        if key not in known:
            known[key] = len(known) < _ASKED and breaks(edit)
        return known[key]

    def in_a_row(length: int, start: int, drawn: list[int]) -> Edit:
        """Return an edit of so many places, from one of them on and around the end."""
        return {(start + i) % places: drawn[i % len(drawn)] for i in range(length)}

    value = st.lists(st.integers(0, values - 1), min_size=1, max_size=_DIFFERENT)
    rows = st.builds(in_a_row, st.integers(1, places), st.integers(0, places - 1), value)
    options = hypothesis.settings(settings(_DRAWN), phases=SHRINKING)
    try:
        edit = hypothesis.find(rows, is_broken, settings=options, random=Random(0))
    except (NoSuchExample, Unsatisfiable):
        return None
    return _one_of(edit, is_broken)


def _one_of(edit: Edit, is_broken: Callable[[Edit], bool]) -> Edit:
    """Return half of an edit, of that, and so on, as long as one of them breaks the relation."""
    items = list(edit.items())
    halves = (dict(items[: len(items) // 2]), dict(items[len(items) // 2 :]))
    half = next((h for h in halves if len(items) > 1 and is_broken(h)), None)
    return edit if half is None else _one_of(half, is_broken)
