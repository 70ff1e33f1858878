"""Two sides, from traces written by hand."""

import math
from dataclasses import replace

import pytest

from tests.command.compare.runs import run
from trainguard.command.compare.interval import margin
from trainguard.command.compare.pairing import Comparison, compare_sides, times_of
from trainguard.core.errors import DeclarationError
from trainguard.events.loop import Step
from trainguard.events.trace import Trace


def changes(found: Comparison) -> dict:
    """Return the changes by their measures."""
    return {change.measure: change for change in found.changes}


def test_a_run_against_itself() -> None:
    """Nothing differs, and nothing is worse than a margin of nothing."""
    margins = {name: margin(name, "0%") for name in ("loss", "time", "memory")}
    found = compare_sides([run()], [run()], margins)
    assert {c.outcome for c in found.changes} == {"within"}
    assert (found.parted, found.differs, found.runs) == (None, (), 1)


def test_what_is_typical_of_a_run() -> None:
    """The mean loss of the last tenth, the time without the first step, the most memory."""
    found = changes(compare_sides([run(count=200)], [run(count=200, loss=1.5)], {}))
    assert found["loss"].a == pytest.approx(1.0, abs=1e-6)
    assert found["loss"].by == pytest.approx(0.5)
    assert found["time"].a == pytest.approx(0.01)
    assert found["memory"].a == 100 << 20


def test_pairs_of_runs() -> None:
    """What both runs of a pair share, such as a seed, does not count as noise."""
    a = [run(seed=i, loss=1 + 0.5 * i) for i in range(4)]
    b = [run(seed=i, loss=1.1 + 0.5 * i + 0.001 * i) for i in range(4)]
    loss = changes(compare_sides(a, b, {"loss": margin("loss", "0.05")}))["loss"]
    assert (loss.pairs, loss.paired, loss.outcome) == (4, "runs", "worse")
    assert loss.low > 0.09


def test_one_training_repeated_is_one() -> None:
    """Runs that repeat bit for bit are no evidence on other seeds: the steps are paired."""
    found = compare_sides([run(noise=0.1)] * 3, [run(noise=0.1, seed=1)] * 3, {})
    assert found.alike
    loss = changes(found)["loss"]
    assert (loss.pairs, loss.paired) == (8, "blocks of steps")
    assert loss.low < 0 < loss.high


def test_noise_of_the_machine() -> None:
    """Where the machine is slow at times, a small difference of time is open, either way."""
    a = [run(seconds=s) for s in (0.010, 0.016, 0.011)]
    b = [run(seconds=s) for s in (0.015, 0.011, 0.016)]
    limit = {"time": margin("time", "10%")}
    assert changes(compare_sides(a, b, limit))["time"].outcome == "open"
    assert changes(compare_sides(b, a, limit))["time"].outcome == "open"


def test_slower_by_a_share_each_time() -> None:
    """Load makes a run slower by a share: pairs are compared by their ratio."""
    loads = (0.010, 0.016, 0.011)
    a, b = ([run(seconds=s * slower) for s in loads] for slower in (1.0, 1.3))
    time = changes(compare_sides(a, b, {"time": margin("time", "20%")}))["time"]
    assert (time.outcome, time.share) == ("worse", pytest.approx(0.3))


def test_a_hiccup_is_no_slowness() -> None:
    """Steps in which the machine did something else do not count."""
    hiccups = run(seed=1)
    events = [
        replace(step, seconds=1.0) if isinstance(step, Step) and step.step % 3 == 0 else step
        for step in hiccups
    ]
    slow = Trace("mlp", tuple(events), hiccups.conditions)
    time = changes(compare_sides([run()], [slow], {"time": margin("time", "1%")}))["time"]
    assert time.outcome == "within"


def test_evaluations_go_before_the_training() -> None:
    """More dropout raises the training loss and lowers what counts."""
    a, b = run(loss=1.0, evaluated=(1.2,)), run(loss=1.4, evaluated=(1.1,))
    found = compare_sides([a], [b], {"loss": margin("loss", "1%")})
    assert not found.worse
    assert changes(found)["evaluated"].outcome == "within"
    assert [c.measure for c in compare_sides([b], [a], {"loss": margin("loss", "1%")}).worse] == [
        "evaluated"
    ]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_b_explodes(loss: float) -> None:
    """That is worse than any margin."""
    found = compare_sides([run()] * 2, [run(loss=loss)] * 2, {"loss": margin("loss", "500%")})
    assert [change.measure for change in found.worse] == ["loss"]


def test_a_exploded() -> None:
    """Nothing can be worse than that: it is refused rather than passed."""
    with pytest.raises(DeclarationError, match="loss of A is not finite"):
        compare_sides([run(loss=math.nan)], [run()], {"loss": margin("loss", "1%")})


def test_a_margin_of_nothing_known() -> None:
    """A margin that nothing can be held against must not pass."""
    with pytest.raises(DeclarationError, match="--memory-margin cannot be held against anything"):
        compare_sides([run(memory=0)], [run()], {"memory": margin("memory", "1%")})


def test_conditions_that_differ() -> None:
    """They are named, except what every run has of its own."""
    a, b = run(seconds=0.01), run(threads=2, torch="2.9.1")
    found = compare_sides([a], [b], {})
    assert found.differs == (("torch", "2.13.0", "2.9.1"), ("threads", "1", "2"))


def test_variables_that_differ_are_told() -> None:
    """Where both sides know their environment; one that is set in one of them alone too."""
    a = {"environment": (("OMP_NUM_THREADS", "1"), ("TORCH_LOGS", "all"))}
    found = compare_sides([run(**a)], [run(environment=(("OMP_NUM_THREADS", "2"),))], {})
    assert found.differs == (("OMP_NUM_THREADS", "1", "2"), ("TORCH_LOGS", "all", "not set"))
    assert compare_sides([run(**a)], [run()], {}).differs == ()


def test_the_first_step_that_differs() -> None:
    """Runs of other lengths are compared as far as both go."""
    assert compare_sides([run(count=80)], [run(count=40)], {}).parted is None
    assert compare_sides([run()], [run(loss=1.1)], {}).parted == 0


def test_the_first_step_of_each_optimizer_is_left_out() -> None:
    """Imports and the making of the model are in it; a run of one step has no other."""
    assert times_of(run(count=4)) == (0.01, 0.01, 0.01)
    assert times_of(run(count=1)) == (60.0,)


def test_several_optimizers() -> None:
    """Each has a window over both steps: a step takes its share of it."""
    both = (*run(optimizer="Adam"), *run(optimizer="Adam#2"))
    time = changes(compare_sides([Trace("gan", both)], [Trace("gan", both)], {}))["time"]
    assert time.a == pytest.approx(0.005)
