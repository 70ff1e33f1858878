"""Averages that are made in the course of a run."""

import copy
from math import isnan

import pytest

from tests.observe.loop.averaging import follow, looks, loop
from tests.observe.loop.trainings import network
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies


def test_accumulation_and_late_copies() -> None:
    """A copy that is made after some steps is found later; micro-batches do not disturb."""

    def train() -> None:
        """Make the average after five steps."""
        model, averages = network(), []

        def update() -> None:
            """Make the average, then update it."""
            if len(averages) == 5:
                follow(averages[-1], model, 0.9)
            else:
                averages.append(copy.deepcopy(model) if len(averages) == 4 else None)

        loop(model, update, 40, micro=2)

    seen = looks(train)
    assert seen
    decays = [look.decay for look in seen if not isnan(look.decay)]
    assert decays == pytest.approx([0.9] * len(decays), rel=1e-4)
    assert min(look.step for look in seen) >= 5


def test_a_copy_is_looked_for_where_one_was_made() -> None:
    """It is found in the next step, long before it is time to look again."""

    def train() -> None:
        """Make the average after twelve steps."""
        model, averages = network(), []

        def update() -> None:
            """Make the average, or update it."""
            averages.append(copy.deepcopy(model) if len(averages) == 12 else None)
            if len(averages) > 13:
                follow(averages[12], model, 0.9)

        loop(model, update, 36)

    assert [look.step for look in looks(train)] == [16, 31, 32]


def test_copies_that_are_made_all_the_time(monkeypatch) -> None:
    """They are looked for at the second step, at the tenth, and three times sooner."""
    searched = []
    monkeypatch.setattr(AveragedCopies, "_search", lambda self: searched.append(1))

    def train() -> None:
        """Keep a copy of each step."""
        model, kept = network(), []
        loop(model, lambda: kept.append(copy.deepcopy(model)), 36)

    assert looks(train) == []
    assert len(searched) == 5
