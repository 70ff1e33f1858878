"""What a user reads of a curve that is not the one that was blessed: whole messages, as printed."""

import pytest

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.curves.curve import Curve
from trainguard.events.curve import Kept
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Config, Verdict
from trainguard.report.text import render

STEPS = 60
BASE = tuple(2.0 / (1 + 0.05 * step) for step in range(STEPS))
PLACE = "__snapshots__/guard_audio/loop.curve_matches_snapshot[loss-cpu].curve"


def train() -> None:
    """Stand for a loop that is never run here."""


def text(by=lambda _: 0.0, column: str = "loss", points: int = STEPS, **conditions: str) -> str:
    """Return the text of a curve, each of whose values is changed by a share of it."""
    values = tuple(value * (1 + by(step)) for step, value in enumerate(BASE[:points]))
    drift = tuple(1e-8 * 1.1**step for step in range(points))
    return Curve(column, tuple(range(points)), (values,), drift, points, conditions).to_text()


def seeds(shift: float = 0.0) -> str:
    """Return the text of the curves of five seeds."""
    runs = [tuple(v + shift + 0.01 * own for v in BASE) for own in range(5)]
    return Curve("loss", tuple(range(STEPS)), tuple(runs), (), STEPS).to_text()


CURVES = {
    "missing": {"found": text()},
    "offset": {"found": text(lambda _: 0.01), "kept": text()},
    "slope": {"found": text(lambda step: 1e-4 * step), "kept": text()},
    "jump": {"found": text(lambda step: 0.02 * (step >= 30)), "kept": text()},
    "noise": {"found": text(lambda step: 0.001 * (-1) ** step), "kept": text()},
    "conditions": {
        "found": text(lambda _: 0.01, torch="2.13.0+cpu", dtype="bfloat16"),
        "kept": text(torch="2.9.1+cpu", dtype="float32"),
    },
    "rate": {"column": "rate", "found": text(lambda s: 0.5 * (s > 9)), "kept": text()},
    "optimizer": {"column": "loss of Adam#2", "found": text(lambda _: 0.01), "kept": text()},
    "longer": {"found": text(), "kept": text(points=50)},
    "seeds": {"found": seeds(0.5), "kept": seeds()},
    "other seeds": {"found": seeds(), "kept": text()},
    "not finite": {"found": text(), "refused": "it is not finite at step 12"},
    "another finding": {"found": text(), "refused": "loss_falls is broken in the same run"},
    "truncated": {"found": text(), "kept": text()[:400]},
    "newer": {"found": text(), "kept": text().replace("format 1", "format 2")},
    "nan": {"found": text(), "kept": text().replace("\n1 1.9047619 ", "\n1 nan ")},
    "edited": {"found": text(), "kept": text().replace("seed:", "seed: 3")},
    "conflict": {"found": text(), "kept": "<<<<<<< HEAD\n" + text()},
    "not known": {"column": "update_norm"},
    "memory": {"column": "memory"},
    "kept apart": {
        "found": text(lambda _: 0.01, torch="2.15.0"),
        "kept": text(lambda _: 0.01, torch="2.15.0"),
        "apart": text(torch="2.13.0"),
    },
}


def messages(name: str, event) -> str:
    """Return what a judge says of one event, as it is printed."""
    loop = tg.Loop(train, curve="loss")
    object.__setattr__(loop, "file", "guard_audio.py")
    object.__setattr__(loop, "line", 12)
    (made,) = find_invariants(f"loop.{name}")
    trace = Trace("train", (event,))
    rerun = f"pytest --trainguard guard_audio.py::loop::{name}"
    judged = Verdict(loop, made, Config(), "broken", rerun=rerun)
    return "\n\n".join(render(finding, judged) for finding in made.judge(trace))


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_message(name: str, snapshot) -> None:
    """It is right in every word, at most 11 lines long, and no line is wider than a terminal."""
    event = Kept(**{"column": "loss", "place": PLACE, **CURVES[name]})
    told = messages("curve_matches_snapshot", event)
    lines = told.splitlines()
    assert told.isascii()
    assert len(lines) <= 11
    assert max(map(len, lines)) <= 100
    assert told == snapshot


@pytest.mark.parametrize("probe", ["rerun", "workers", "processes"])
def test_a_run_that_does_not_repeat(probe: str, snapshot) -> None:
    """The message says what was tried."""
    event = Probe(probe=probe, measured=2.0, reference=8.0, step=2, label="0.5 against 0.25")
    assert messages("run_is_reproducible", event) == snapshot
