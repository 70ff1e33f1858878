"""Real schedulers, driven: what the trace holds, and what is said where that is impossible."""

# a schedule takes its parameters by name, used or not

import math
import time
import warnings
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim import lr_scheduler as lr

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import DeclarationError, SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Tick, Trace
from trainguard.observe.schedule.observer import observe


def trace(schedule: tg.Schedule, probe: str = "run", **settings) -> Trace[Tick]:
    """Observe a schedule with one probe."""
    return observe(schedule, "cpu", "float32", Settings(**settings)).trace(probe)


def rates(schedule: tg.Schedule, phase: str = "run", probe: str = "run") -> list[float]:
    """Return the rates of the first group in one phase."""
    return [tick.rates[0] for tick in trace(schedule, probe) if tick.phase == phase]


class ByNumber:
    """A scheduler of no library: it is told the epoch, or the number of updates."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, epoch: int) -> None:
        """Set the rate of an epoch."""
        self.optimizer.param_groups[0]["lr"] = 1 / (1 + epoch)

    def step_update(self, update: int) -> None:
        """Set the rate of an update."""
        self.optimizer.param_groups[0]["lr"] = 1 / (100 + update)


def build_pair():
    """Return an optimizer with its scheduler."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=8.0)
    return optimizer, lr.ExponentialLR(optimizer, 0.5)


def build_factory():
    """Return a function of the step."""
    return lambda step: 8.0 * 0.5**step


@pytest.mark.parametrize(
    "schedule",
    [
        tg.Schedule(lr.ExponentialLR, arguments={"gamma": 0.5}, base_rate=8.0, total=4),
        tg.Schedule(lambda opt: lr.ExponentialLR(opt, 0.5), base_rate=8.0, total=4),
        tg.Schedule(lambda opt: lr.ExponentialLR(opt, 0.5), peak=8.0, total=4),
        tg.Schedule(build_pair, total=4),
        tg.Schedule(lambda: build_pair()[1], total=4),
        tg.Schedule(lambda: {"optimizer": build_pair()[0], "name": "x"} | {"s": []}, total=1),
        tg.Schedule(lambda step: 8.0 * 0.5**step, total=4),
        tg.Schedule(lambda step: [8.0 * 0.5**step, 1.0], total=4),
        tg.Schedule(lambda cfg, it: cfg * 0.5**it, arguments={"cfg": 8.0}, total=4),
        tg.Schedule(build_factory, total=4),
        tg.Schedule(lambda step: torch.tensor(8.0 * 0.5**step), total=4),
    ],
)
def test_every_way_to_declare_one(schedule: tg.Schedule) -> None:
    """Schedulers, pairs, functions and factories of functions give the rates in force."""
    assert rates(schedule) == [8.0, 4.0, 2.0, 1.0][: schedule.total]


@pytest.mark.parametrize(("unit", "second"), [("step", 1 / 101), ("epoch", 1 / 2)])
def test_a_scheduler_that_is_told_the_number(unit: Any, second: float) -> None:
    """step_update is called once per step, step once per epoch, with the count so far."""
    assert rates(tg.Schedule(ByNumber, unit=unit, total=2))[1] == second


def test_several_schedulers_are_stepped_in_order() -> None:
    """A list is advanced as a whole, and nothing is reported for it."""
    both = tg.Schedule(
        lambda optimizer: [lr.ExponentialLR(optimizer, 0.5), lr.ExponentialLR(optimizer, 0.1)],
        base_rate=1.0,
        total=3,
    )
    assert rates(both) == pytest.approx([1.0, 0.05, 0.0025])
    assert {tick.reported for tick in trace(both)} == {()}


def test_every_group_has_its_rate_and_its_report() -> None:
    """The groups of the team's own optimizer are recorded in order."""

    def optimizer():
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        return SGD([{"params": p, "lr": r} for p, r in zip(parameters, (2.0, 1.0), strict=True)])

    schedule = tg.Schedule(lr.ExponentialLR, arguments={"gamma": 0.5}, optimizer=optimizer, total=2)
    assert [(t.rates, t.reported) for t in trace(schedule)] == [
        ((2.0, 1.0), (2.0, 1.0)),
        ((1.0, 0.5), (1.0, 0.5)),
    ]


def test_the_loop_may_advance_in_its_own_way() -> None:
    """`advance` gets what build returned, the step, and the metric if it asks for it."""
    seen = []

    def advance(scheduler, step, metric):
        seen.append((type(scheduler).__name__, step, metric))

    trace(tg.Schedule(lr.StepLR, arguments={"step_size": 1}, advance=advance, metrics=(3.0, 2.0)))
    assert seen == [("StepLR", 0, 3.0)]


@pytest.mark.parametrize(
    ("schedule", "length"),
    [
        (tg.Schedule(lambda step: 1.0), 1000),
        (tg.Schedule(lambda step: 1.0, total=7), 7),
        (tg.Schedule(lr.OneCycleLR, arguments={"max_lr": 1.0, "total_steps": 50}), 50),
        (tg.Schedule(lr.OneCycleLR, arguments={"max_lr": 1.0, "total_steps": 50}, total=80), 50),
        (tg.Schedule(lr.ReduceLROnPlateau, metrics=(1.0, 2.0, 3.0)), 3),
    ],
)
def test_how_long_a_run_is(schedule: tg.Schedule, length: int) -> None:
    """As long as promised, and no longer than the schedule can go on."""
    assert len(trace(schedule)) == length


def test_a_plateau_rule_is_fed_its_metrics() -> None:
    """The declared metrics are fed in order, one per advance, and recorded."""
    schedule = tg.Schedule(
        lr.ReduceLROnPlateau, arguments={"patience": 0}, metrics=(1.0, 2.0, 0.5), base_rate=1.0
    )
    assert [(t.metric, t.rates[0]) for t in trace(schedule)] == [(1.0, 1.0), (2.0, 1.0), (0.5, 0.1)]


def raises_when_built(optimizer):
    """Fail as a typo in a configuration does."""
    raise KeyError("warmup")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (raises_when_built, "raised KeyError when it was built: 'warmup'"),
        (lambda step: 1 / (5 - step), "raised ZeroDivisionError at step 5"),
        (lambda optimizer: None, "returned None, not a scheduler"),
        (lambda optimizer: "cosine", "returned the str 'cosine', not a scheduler"),
        (lambda optimizer: [object()], "not a scheduler"),
        (lambda: lr, "not a scheduler"),
        (lambda step: None, "its rate at step 0 is None"),
        (lambda step: "0.1", "its rate at step 0 is the str '0.1'"),
        (lambda step: 1j, "its rate at step 0 is the complex 1j"),
        (lambda: ByNumber(None), "without its optimizer"),
    ],
)
def test_what_cannot_be_driven(build: Any, words: str) -> None:
    """Each gets a sentence of its own, and is asked only once."""
    observation = observe(tg.Schedule(build), "cpu", "float32", Settings())
    with pytest.raises(SubjectError, match=words) as caught:
        observation.trace("run")
    assert caught.value.remedy
    with pytest.raises(SubjectError) as again:
        observation.trace("resume")
    assert again.value is caught.value


def test_the_teams_own_exception_is_kept() -> None:
    """The traceback of the component is the cause."""
    with pytest.raises(SubjectError) as caught:
        trace(tg.Schedule(raises_when_built))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_optimizer_factory_that_makes_none() -> None:
    """The optimizer is checked before the schedule is built on it."""
    with pytest.raises(SubjectError, match=r"optimizer\(\) returned None"):
        trace(tg.Schedule(lr.ExponentialLR, arguments={"gamma": 1.0}, optimizer=lambda: None))


def test_a_schedule_that_hangs_is_stopped() -> None:
    """The time limit of the subject ends it with a sentence."""
    with pytest.raises(SubjectError, match="still running after"):
        trace(tg.Schedule(lambda step: time.sleep(60), timeout=0.2))


def test_global_state_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule that seeds, prints, warns and sets the default dtype leaves nothing behind."""

    def build(optimizer):
        torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        print("reducing")
        warnings.warn("deprecated", stacklevel=1)
        return lr.ExponentialLR(optimizer, 0.9)

    before = torch.get_rng_state()
    trace(tg.Schedule(build, total=3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() is torch.float32
    assert capsys.readouterr().out == ""


def test_nan_is_a_rate_to_be_judged() -> None:
    """A number that is no rate is a finding, not a failure to observe."""
    assert math.isnan(rates(tg.Schedule(lambda step: math.nan, total=2))[0])


def test_a_probe_that_does_not_exist() -> None:
    """A judge of another package that asks for an unknown probe is told the nearest."""
    with pytest.raises(DeclarationError, match="Did you mean 'resume'"):
        trace(tg.Schedule(lambda step: 1.0), "resumed")


def test_drawn_settings_are_the_same_in_every_run() -> None:
    """The seed decides what is drawn, and the profile how much."""
    schedule = tg.Schedule(lambda step, total: 1.0, vary={"total": st.integers(1, 50)}, name="flat")
    first, again = trace(schedule), trace(schedule)
    assert first == again
    assert first.promise("total", 0) == 1
    assert len({t.case for t in trace(schedule, profile="quick")}) == 5
    assert trace(schedule, seed=1).events != first.events


def test_draws_that_contradict_the_promises_are_left_out() -> None:
    """A warmup longer than the total is no setting, and where all are so it is said."""
    vary = {"warmup": st.integers(0, 100), "total": st.integers(1, 100)}
    seen = trace(tg.Schedule(lambda step, warmup, total: 1.0, vary=vary))
    cases = {t.case for t in seen}
    assert all(seen.promise("warmup", c) <= seen.promise("total", c) for c in cases)
    with pytest.raises(SubjectError, match="no setting drawn"):
        trace(tg.Schedule(lambda step, warmup: 1.0, vary={"warmup": st.integers(9, 9)}, total=5))


def build_late(optimizer, warmup, total):
    """Return a warmup that is late by a tenth where it is longer than 20 steps."""
    length = warmup * 1.1 if warmup > 20 else max(1, warmup)
    return lr.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / length))


def test_the_smallest_failing_setting_is_reported() -> None:
    """Hypothesis finds the least warmup that fails, and the call can be pasted."""
    schedule = tg.Schedule(
        build_late,
        vary={"warmup": st.integers(0, 200), "total": st.integers(201, 500)},
        base_rate=1.0,
        peak=1.0,
    )
    observation = observe(schedule, "cpu", "float32", Settings())
    judge = find_invariants("warmup_reaches_peak")[0].judge
    (finding,) = judge(observation.trace("run"))
    smallest = observation.shrink(finding, judge)
    assert smallest.smallest == "build_late(optimizer, warmup=21, total=201)"
    assert smallest.at == "step 21"


def test_a_long_argument_is_written_by_name() -> None:
    """What is too long to read, or cannot be pasted, stands by its parameter's name."""
    schedule = tg.Schedule(
        lambda config, step: 2.0, arguments={"config": object()}, peak=1.0, total=2, name="rate"
    )
    observation = observe(schedule, "cpu", "float32", Settings())
    judge = find_invariants("peak_is_not_exceeded")[0].judge
    (finding,) = judge(observation.trace("run"))
    assert observation.shrink(finding, judge).smallest == "rate(config=config, step=0)"


def test_a_plateau_probe_needs_a_metric() -> None:
    """A scheduler that is fed no metric is no plateau rule: the item is skipped, not failed."""
    with pytest.raises(Unjudged, match="no metric"):
        trace(tg.Schedule(lr.ExponentialLR, arguments={"gamma": 0.9}, patience=3), "plateau")
