"""What a run shows of why its model learns nothing."""

import pytest

from trainguard.events.fit import BaselineFit
from trainguard.events.loop import Step
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.losses.causes import find_causes

LAYERS = (("first.weight", 0.5, 100), ("last.weight", 1.0, 100))


def told(*events, fit=None, **columns) -> str:
    """Return what is told of a run of 100 steps of SGD."""
    usual = {"update": 0.01, "weight": 5.0, "norm": 1.0, "rates": (0.1,), "layers": LAYERS}
    steps = [Step(step=n, source="train.py:9", **(usual | columns)) for n in range(100)]
    fitted = BaselineFit(function="cross_entropy", calls=100, **(fit or {}))
    return "; ".join(find_causes(Trace("train.py", (*steps, *events)), fitted))


def test_nothing_is_told_of_a_usual_run() -> None:
    """Nor where numbers are not known."""
    assert told() == told(layers=(), rates=()) == told(fit={"deviation": 0.9}) == ""


def test_inputs_of_an_odd_scale() -> None:
    """As bytes that were divided by 255 twice, or never."""
    assert told(fit={"deviation": 0.001}).startswith("its inputs deviate by 0.001 ")
    assert told(fit={"deviation": 85.0}).endswith("perhaps they were never normalised")


@pytest.mark.parametrize("probe", ["equal units", "units begun equal"])
def test_weights_that_began_alike(probe: str) -> None:
    """With the line that has set them."""
    seen = Probe(probe=probe, measured=16, reference=4, label="conv.weight", source="/a/net.py:7")
    expected = "all units of conv.weight began with the same weights (net.py:7)"
    assert told(seen).startswith(expected)


def test_a_rate_that_is_too_low() -> None:
    """All steps are too short, and not for want of a gradient."""
    assert "the rate of SGD, 0.1, is too low" in told(update=1e-4)
    assert told(update=1e-4, norm=1e-3) == ""
    assert told(update=1e-4, fit={"alike": 80}) == ""


def test_gradients_that_fade() -> None:
    """The least against the largest, for each of their elements."""
    layers = (("first.weight", 1e-7, 100), ("last.weight", 1.0, 100))
    assert told(layers=layers).startswith("first.weight gets 1e-07 of the gradient of last.weight")


def test_what_becomes_of_the_input() -> None:
    """With the line of the layer after which it is lost, or of what has drawn the weights."""
    usual = {"probe": "signal lost", "label": "`a` and `b`", "source": "/a/net.py:7"}
    lost = told(Probe(measured=1e-4, reference=1.0, **usual))
    assert "the last layer gets 0.0001 of what differs" in lost
    assert lost.endswith("between `a` and `b` (net.py:7)")
    usual = {"probe": "signal grown", "label": "`a` to `b`", "source": ""}
    grown = told(Probe(measured=2e9, reference=0.5, **usual))
    assert grown.startswith("numbers grow from 0.5 to 2e+09 from `a` to `b`: perhaps its weights")
