"""The judge of states that are kept while a number of an evaluation is at its worst."""

from dataclasses import replace

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Rank
from trainguard.events.loop import Logged
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace

LOSSES = (1.0, 0.8, 1.1, 0.7, 0.6, 1.2)
RIGHT = (0.5, 0.6, 0.4, 0.7, 0.8, 0.9)


def said(name, values) -> list[Logged]:
    """Write what is said of an evaluation after every ten steps."""
    return [
        Logged(name=name, value=value, step=10 * n, rounding=5e-5, clock=20 * n)
        for n, value in enumerate(values, 1)
    ]


def kept(*steps, loaded=-1, at=-1) -> Probe:
    """Write which states a line has taken, and which was loaded."""
    label = " ".join(map(str, steps))
    return Probe(probe="kept", measured=float(loaded), reference=float(at), step=60, label=label)


@pytest.mark.parametrize(
    ("probe", "events", "found"),
    [
        (kept(10, 30, 60), said("val_loss", LOSSES), True),
        (kept(10, 30), said("val_acc", RIGHT), False),  # not loaded, and too few
        (kept(10, 30, loaded=30, at=60), said("val_acc", RIGHT), True),
        (kept(10, 30, loaded=30, at=40), said("val_acc", RIGHT), False),  # it goes on after that
        (kept(10, 20, 40, 50), said("val_loss", LOSSES), False),
        (kept(10, 30, 60), said("train_loss", LOSSES), False),
        (kept(10, 30, 60), [*said("val_loss", LOSSES), *said("val_f1", LOSSES)], False),
        (kept(10, 20, 30, 40, 50, 60), said("val_loss", (1, 2, 3, 4, 5, 6)), False),
        (kept(20, 40, 60), said("val_loss", LOSSES), False),
    ],
)
def test_what_is_kept(judged, steps, probe, events, found) -> None:
    """The worst so far, and not the best of another number, nor each state that there is."""
    assert bool(judged("plateau_metric_fits_mode", [*steps(60), probe, *events])) == found


FALLING = (1.0, 0.8, 0.9, 0.7, 0.6, 0.5)


@pytest.mark.parametrize(
    ("steps_kept", "events", "found"),
    [
        ((10,), said("val_loss", FALLING), True),
        ((10,), said("ter", FALLING) + said("val_loss", FALLING), True),
        ((10, 30), said("val_loss", (1.0, 0.8, 1.1, 0.7, 0.6, 0.5)), True),
        ((10,), said("val_loss", FALLING) + said("val_acc", [1.0] * 6), False),
        ((10,), said("val_loss", FALLING) + said("val_size", (5, 4, 3, 2, 2, 1)), False),
        ((10, 20, 40, 50, 60), said("val_loss", FALLING), False),
        ((60,), said("val_loss", FALLING), False),
        ((20,), said("val_loss", FALLING), False),
    ],
    ids=["first", "rate", "two", "all right", "unknown", "records", "last", "second"],
)
def test_the_only_state_that_is_called_the_best(judged, steps, steps_kept, events, found) -> None:
    """It is the worst by all that is said: a note, as what chose it may not be said."""
    probe = kept(*steps_kept)
    for label, rank in ((probe.label, None), (f"{probe.label}\nbest", "note")):
        made = [*steps(60), replace(probe, label=label), *events]
        ranks = [each.rank.value for each in judged("plateau_metric_fits_mode", made)]
        assert ranks == ([rank] if found and rank else [])


def left(*steps, unread=True) -> Probe:
    """Write which states a line has taken, after the last of which nothing was loaded."""
    label = " ".join(map(str, steps))
    return Probe(probe="left", measured=float(unread), step=60, label=label)


def at_the_end(name="test_acc", step=60) -> Logged:
    """Write what is said at the end."""
    return Logged(name=name, value=0.7, step=step, clock=1000)


@pytest.mark.parametrize(
    ("probe", "events", "ranks"),
    [
        (left(10, 20, 40, 50), [*said("val_loss", LOSSES), at_the_end()], [Rank.BROKEN]),
        (
            left(10, 20, 40, 50, unread=False),
            [*said("val_loss", LOSSES), at_the_end()],
            [Rank.NOTE],
        ),
        (
            left(10, 20, 40, 50, 60),
            [*said("val_acc", RIGHT), at_the_end()],
            [],
        ),  # the last is the best
        (left(10, 20, 40, 50), said("val_loss", LOSSES), []),  # no test
        (left(10, 20, 40, 50), [*said("val_loss", LOSSES), at_the_end(step=40)], []),
        (left(10, 20, 40, 50), [*said("val_loss", LOSSES), at_the_end("val_acc")], []),
        (left(10, 30, 50), [*said("val_loss", LOSSES), at_the_end()], []),  # every other one
        (left(10, 20, 40, 50), [*said("score", LOSSES), at_the_end()], []),  # it may rise or fall
        (left(10, 20, 40, 50), [*said("test_loss", LOSSES), at_the_end("test_loss")], []),
        (kept(10, 20, 40, 50), [*said("val_loss", LOSSES), at_the_end()], []),  # it was loaded
    ],
)
def test_what_is_left(judged, steps, probe, events, ranks) -> None:
    """The best so far, of which nothing comes, before a test of something else."""
    found = judged("best_state_is_evaluated", [*steps(60), probe, *events])
    assert [finding.rank for finding in found] == ranks


@pytest.mark.parametrize(
    ("found", "judged_at_all"),
    [
        ([left(10, 20), at_the_end()], True),
        ([left(10, 20)], False),  # no test
        ([kept(10, 20), at_the_end()], False),  # it was loaded
    ],
)
def test_without_a_test_nothing_is_judged(found, judged_at_all) -> None:
    """A pass that saw nothing is none."""
    (made,) = find_invariants("loop.best_state_is_evaluated")
    events = [*said("val_loss", LOSSES), *found]
    assert bool(made.evidence(Trace("train", tuple(events)))) is not judged_at_all
