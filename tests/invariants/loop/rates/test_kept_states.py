"""The judge of states that are kept while a number of an evaluation is at its worst."""

import pytest

from trainguard.events.loop import Logged
from trainguard.events.probe import Probe

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
