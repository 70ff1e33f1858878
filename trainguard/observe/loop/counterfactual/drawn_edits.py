"""Edits that Hypothesis draws, of which the smallest that breaks a relation is found."""

from collections.abc import Callable, Mapping
from random import Random

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample, Unsatisfiable

from trainguard.observe.tools.structure import SHRINKING, settings

_DRAWN = 24  # edits, while none breaks the relation: a second of children, as a step has them
_ASKED = 60  # of all; to make one smaller takes 20 to 40 where a place and a value matter
_TOGETHER = 8  # places that are edited at most: all of them are in the edit that is made by hand
Edit = Mapping[int, int]  # which value goes to which place, both as numbers


class ForkedWithin(BaseException):
    """Leads a child out of what draws, which catches no such thing; it goes on as what it is."""


def find_smallest(places: int, values: int, breaks: Callable[[Edit], bool]) -> Edit | None:
    """Return the edit of fewest places, and of the first values, that breaks a relation."""
    known: dict[tuple[tuple[int, int], ...], bool] = {}

    def is_broken(edit: Edit) -> bool:
        """Ask for each edit once, and for so many; the same answer comes to the same edit."""
        key = tuple(sorted(edit.items()))
        if key not in known:
            known[key] = len(known) < _ASKED and breaks(edit)
        return known[key]

    edits = st.dictionaries(
        st.integers(0, places - 1),
        st.integers(0, values - 1),
        min_size=1,
        max_size=min(places, _TOGETHER),
    )
    options = hypothesis.settings(settings(_DRAWN), phases=SHRINKING)
    try:
        return hypothesis.find(edits, is_broken, settings=options, random=Random(0))
    except (NoSuchExample, Unsatisfiable):
        return None
