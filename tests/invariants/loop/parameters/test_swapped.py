"""Models that go on from their averages."""

from trainguard.events.probe import Probe

COMES_BACK = "models_come_back_from_their_averages"


def swapped(left: float, times: float) -> list[Probe]:
    """Write after how many of some evaluations a model was not put back."""
    row = {"measured": left, "reference": times, "label": "EMA.shadow", "source": "train.py:9"}
    return [Probe(probe="swapped average", **row)]


def test_a_model_that_is_never_put_back(judged) -> None:
    """After two evaluations or more, and none after which it was."""
    (finding,) = judged(COMES_BACK, swapped(2.0, 2.0))
    assert finding.at == "EMA.shadow, evaluated in the place of the model"
    assert finding.measured == "not put back after 2 of 2 evaluations"
    assert finding.source == "train.py:9"
    for healthy in (swapped(1.0, 1.0), swapped(3.0, 4.0)):
        assert judged(COMES_BACK, healthy) == []
