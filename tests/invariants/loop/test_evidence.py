"""What a judgement needs to have seen is said where it is missing."""

import pytest

from tests.invariants.loop.conftest import judge, write
from trainguard.core.catalogue import Invariant, catalogue
from trainguard.events.counterfactual import WhatIf
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import (
    MIXING,
    both,
    either,
    has_answer,
    has_probe,
    steps_from,
)

# They judge whatever a run does, the first step included.
ALWAYS = {"gradient_norm_is_positive", "loss_depends_on_parameters", "nothing_grows"}
RUN = [made for made in catalogue("loop") if made.probe == "run" and not made.needs]


def trace(*events, **conditions) -> Trace:
    """Return a trace of events."""
    return Trace("train", events, conditions)


@pytest.mark.parametrize("made", RUN, ids=lambda made: made.name)
def test_a_run_of_nothing_is_no_pass(made: Invariant) -> None:
    """Of an empty trace, each judgement says what it lacks."""
    assert bool(made.evidence(trace(looked=()))) == (made.name not in ALWAYS)


def test_a_probe_that_was_made_and_found_nothing_is_evidence() -> None:
    """The header tells which probes were made; one of before that did not is believed."""
    missing = has_probe("mix", "nothing was tried")
    assert missing(trace(looked=("mix",))) == ""
    assert missing(trace()) == ""
    assert missing(trace(Probe(probe="mix", measured=1.0), looked=())) == ""
    assert missing(trace(Probe(probe="repeat", measured=1.0), looked=())) == "nothing was tried"


def test_a_question_that_was_given_up_says_why() -> None:
    """The last reason is told; one answer is enough."""
    lost = WhatIf(question="inputs edited", outcome="given up", reason="it took too long")
    void = WhatIf(question="inputs edited", outcome="void", reason="targets moved too")
    said = WhatIf(question="inputs edited", outcome="answered", measured=1.0)
    missing = has_answer("inputs edited", "nothing was edited")
    assert missing(trace(lost, void)) == "no step could be asked: targets moved too"
    assert missing(trace(lost, said, void)) == ""
    assert missing(trace()) == "nothing was edited"
    spent = WhatIf(question="nothing edited", outcome="given up", reason="the time was spent")
    assert missing(trace(spent)) == "no step could be asked: the time was spent"
    other = WhatIf(question="other rates", outcome="given up", reason="it calls os.mkdir")
    assert missing(trace(other)) == "nothing was edited"
    switched_off = "nothing was tried out: probes are switched off"
    assert missing(trace(probe=False)) == switched_off


def test_models_that_were_tried_without_their_steps_are_half_of_it() -> None:
    """Where an accelerator forbids to ask steps, a probe of the models alone is no pass."""
    given_up = WhatIf(question="nothing edited", outcome="given up", reason="a device is in use")
    half = trace(given_up, looked=("mix",), device="cuda")
    why = "models were tried alone, but no step could be asked: a device is in use"
    assert MIXING(half) == why
    said = WhatIf(question="a sample edited", outcome="answered")
    assert MIXING(trace(given_up, said, looked=("mix",), device="cuda")) == ""
    assert MIXING(trace(looked=("mix",), device="cuda")) == ""  # no question fits its steps
    assert MIXING(trace(given_up, looked=("mix",), device="cpu")) == ""


def test_choices() -> None:
    """One of two is enough, or both are needed."""
    short, long = steps_from(5), steps_from(50)
    run = trace(*write(20))
    assert (either(long, short)(run), both(short, long)(run)) == (
        "",
        "fewer than 50 steps were made",
    )
    assert both(long, short)(run) == either(long, long)(run) == "fewer than 50 steps were made"
    assert judge("data_keeps_up", write(3)) == []
