"""The judge of rankings that are the wrong way round."""

import pytest

from trainguard.events.fit import Metrics
from trainguard.events.loop import Logged


def evaluations(areas: list[float], said: list[float], name: str = "val_auc") -> list:
    """Return evaluations with some areas, and what is said of them."""
    events: list = []
    for index, (area, value) in enumerate(zip(areas, said, strict=True)):
        values = (("auc", "true", area), ("area", "true", area), ("area", "spread", 0.02))
        step, clock = 10 * index, 10 * index
        events += [
            Metrics(source="of Net", step=step, clock=clock, batches=1, values=values),
            Logged(name=name, value=value, step=step, rounding=5e-5, clock=clock + 1),
        ]
    return events


LOW = [0.3, 0.1, 0.05, 0.04]


def test_areas_far_below_one_half_are_found(judged) -> None:
    """From the first one on, all of them; in percent too."""
    (finding,) = judged("rankings_are_not_upside_down", evaluations(LOW, LOW))
    assert finding.summary == "the scores that an evaluation of `train` ranks by are inverted"
    assert (finding.measured, finding.allowed) == (
        "0.04 (4 of 4 times)",
        "at least 0.4, as by chance",
    )
    percents = [100 * area for area in LOW]
    assert len(judged("rankings_are_not_upside_down", evaluations(LOW, percents))) == 1


@pytest.mark.parametrize(
    ("areas", "said", "name"),
    [
        (LOW, [1 - area for area in LOW], "val_auc"),
        ([0.3, 0.45, 0.6, 0.8], [0.3, 0.45, 0.6, 0.8], "val_auc"),
        (LOW[:2], LOW[:2], "val_auc"),
        ([0.42] * 4, [0.42] * 4, "val_auc"),
        (LOW, LOW, "attack_auc"),
    ],
    ids=["of the other sign", "rises", "few", "near chance", "another name"],
)
def test_other_areas_are_left_alone(areas, said, name, judged) -> None:
    """What is said of other scores, what may be chance, and what is meant."""
    assert judged("rankings_are_not_upside_down", evaluations(areas, said, name)) == []
