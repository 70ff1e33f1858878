"""What a run shows of why its model learns nothing."""

import pytest

from trainguard.events.counterfactual import WhatIf
from trainguard.events.fit import BaselineFit
from trainguard.events.loop import Parameter, Step, Term
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.losses.causes import (
    find_causes,
    tell_of_growth,
    tell_of_limits,
    tell_of_outputs,
    tell_of_start,
)

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
    loader = Origin(name="loader", source="/a/net.py:3")
    assert "before the loader (net.py:3) is made" in told(loader, fit={"deviation": 85.0})


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


def test_functions_at_their_limit() -> None:
    """With the line that calls one."""
    seen = Probe(probe="saturated", measured=9, label="a.weight clamp", source="/a/net.py:7")
    expected = "clamp() is at its limit for every sample (net.py:7), where all gradients become"
    assert tell_of_limits(Trace("train.py", (seen,))).startswith(expected)
    assert tell_of_limits(Trace("train.py", ())) == ""
    steep = BaselineFit(function="mse_loss", only=1.0, losses=(2.0,), constants=(2.0,))
    run = (Step(step=0, loss=80.0), steep)
    assert tell_of_outputs(Trace("train.py", (*run, seen))).startswith(expected)
    assert tell_of_outputs(Trace("train.py", run)).startswith("the first loss, 80, is 40 times")
    bytes_ = BaselineFit(function="mse_loss", deviation=85.0)
    assert tell_of_outputs(Trace("train.py", run), bytes_).startswith("its inputs deviate by 85")


def test_what_becomes_of_the_input() -> None:
    """With the line of the layer after which it is lost, or of what has drawn the weights."""
    usual = {"probe": "signal lost", "label": "`a` and `b`", "source": "/a/net.py:7"}
    lost = told(Probe(measured=1e-4, reference=1.0, **usual))
    assert "the last layer gets 0.0001 of what differs" in lost
    assert lost.endswith("between `a` and `b` (net.py:7)")
    drawn = (Parameter(name="a.weight"), Origin(name="a.weight", source="/a/net.py:3"))
    lost = told(Probe(measured=1e-4, reference=1.0, **usual), *drawn)
    assert lost.endswith("(net.py:7), with the weights that were drawn (net.py:3)")
    usual = {"probe": "signal grown", "label": "`a` to `b`", "source": ""}
    grown = told(Probe(measured=2e9, reference=0.5, **usual))
    assert grown.startswith("numbers grow from 0.5 to 2e+09 from `a` to `b`: perhaps its weights")


MADE = Origin(name="SGD", source="/a/net.py:5")


def lesson(*times: float) -> list[WhatIf]:
    """Return answers to whether one batch is learned: at how many times the rate it is."""
    row = {"question": "one batch learned", "outcome": "answered", "measured": 2.0}
    return [WhatIf(reference=2.0, numbers=(each,), **row) for each in times]


def again(*faults: str, higher: float = 8.0) -> list[WhatIf]:
    """Return answers to whether steps with one batch make its loss higher, and why."""
    row = {"question": "the same batch again", "outcome": "answered", "reference": 8.0}
    return [WhatIf(measured=higher, enters=fault, **row) for fault in faults]


def test_a_rate_at_which_one_batch_is_not_learned() -> None:
    """Another one learns it, in each answer: the line of the optimizer is named."""
    expected = "steps with one batch learn it at {} times the rate, and not as they are: "
    low = told(MADE, *lesson(10.0, 100.0))
    assert low == expected.format(100) + "the rate of SGD, 0.1 (net.py:5), is too low"
    high = told(*lesson(0.1))
    assert high == expected.format(0.1) + "the rate of SGD, 0.1, is too high"
    for times in ((1.0, 10.0), (0.1, 10.0), (0.0,), (float("inf"),)):
        assert told(*lesson(*times)) == ""


def test_a_loss_that_is_a_sum() -> None:
    """Its gradients grow with the batch; where a mean is beside it, it is as meant."""
    term = {"function": "mse_loss", "source": "/a/net.py:8", "calls": 9}
    found = told(Term(reduction="sum", **term), *lesson(0.1))
    assert found.endswith("is too high, or the loss is to be a mean: mse_loss (net.py:8) sums")
    both = (Term(reduction="sum", **term), Term(reduction="mean", **term))
    for others in (both, both[1:], (Term(reduction="sum", evaluation=True, **term),)):
        assert told(*others, *lesson(0.1)).endswith("is too high")
    assert "sums" not in told(Term(reduction="sum", **term), *lesson(10.0))


def test_steps_that_make_one_batch_worse() -> None:
    """A sign, where a hundredth of the rate does so too; a rate, where it does not."""
    sign, rate = told(*again("sign")), told(MADE, *again("rate", "rate"))
    assert "at a hundredth of the rate too: a sign is turned" in sign
    assert rate.endswith(
        "lower at a hundredth of the rate: the rate of SGD, 0.1 (net.py:5), is too high"
    )
    assert (
        told(*again("sign", "rate")) == told(*again("")) == told(*again("sign", higher=7.0)) == ""
    )


def grow(*losses: float, moved: float, events: tuple = ()) -> str:
    """Return what is told of losses until one that is not finite."""
    usual = {"weight": 1.0, "update": moved, "rates": (0.1,)}
    steps = [Step(step=n, clock=n, loss=each, **usual) for n, each in enumerate(losses)]
    last = Step(step=len(losses), clock=len(losses), loss=float("nan"))
    return tell_of_growth(Trace("train.py", (*steps, last, *events)), last)


def test_a_loss_that_grows_until_it_is_lost() -> None:
    """By steps that are far too long, or by short ones that lead up."""
    found = grow(1.0, 1.5, 9.0, 99.0, moved=0.2, events=(MADE,))
    assert found.startswith("a step moves the weights by 0.2 of their norm before the loss doubles")
    assert found.endswith("the rate of SGD, 0.1 (net.py:5), is perhaps too high")
    assert "perhaps a sign is turned" in grow(1.0, 1.5, 9.0, 99.0, moved=0.01)
    assert grow(1.0, 1.5, 9.0, 99.0, moved=0.05) == ""  # may be either
    assert grow(1.0, 1.5, 9.0, moved=0.2) == grow(-1.0, -9.0, -99.0, moved=0.2) == ""
    assert grow(-1.0, 5.0, 9.0, moved=0.2) == grow(1.0, 1.5, 99.0, moved=0.0) == ""
    assert grow(moved=0.2) == ""
    assert "at a hundredth of the rate too" in grow(1.0, moved=0.05, events=tuple(again("sign")))


def begin(loss: float, *events, only: float = 1.0) -> str:
    """Return what is told of a first loss, where a constant has 2."""
    fit = BaselineFit(function="cross_entropy", only=only, losses=(2.0,), constants=(2.0,))
    return tell_of_start(Trace("train.py", (Step(step=0, loss=loss), fit, *events)))


def test_a_first_loss_that_is_far_too_high() -> None:
    """The one line that has set weights is named."""
    set_ = (Parameter(name="a.weight"), Origin(name="a.weight", source="/a/net.py:7"))
    assert begin(80.0, *set_) == (
        "the first loss, 80, is 40 times that of a constant: perhaps weights are drawn far too"
        " large (net.py:7), or inputs are"
    )
    other = (Parameter(name="b.weight"), Origin(name="b.weight", source="/a/net.py:9"))
    assert "too large, or inputs" in begin(80.0, *set_, *other)
    assert "too large, or inputs" in begin(80.0, MADE)
    assert begin(9.0) == begin(float("inf")) == begin(float("nan")) == begin(80.0, only=0.5) == ""
