"""Real schedulers, replayed: resumed, with schedulers left out, and on metrics of all kinds."""

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as lr

import trainguard as tg
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Tick
from trainguard.observe.schedule.observer import observe
from trainguard.observe.schedule.probes import SEQUENCES


def ticks(schedule: tg.Schedule, probe: str, *phases: str) -> list[Tick]:
    """Observe a schedule with one probe and return the ticks of some phases."""
    trace = observe(schedule, "cpu", "float32", Settings()).trace(probe)
    return [tick for tick in trace if tick.phase in phases or not phases]


def broken(schedule: tg.Schedule, name: str) -> list[str]:
    """Judge a schedule with one invariant and return what was measured."""
    try:
        tg.check(schedule, select=[name], devices=["cpu"])
    except tg.Broken as report:
        return [f.measured for verdict in report.verdicts for f in verdict.findings]
    return []


class Forgetful:
    """A scheduler that counts its own steps, and saves nothing, all or half of what it needs."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.count = 0

    def step(self) -> None:
        """Count, and set the rate from the count."""
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 1 / (1 + self.count)


class Waiting(Forgetful):
    """One that counts what did not improve, and forgets it too."""

    def step(self, metrics: float) -> None:
        """Count a metric."""
        super().step()


class Remembering(Forgetful):
    """The same with its state saved."""

    def state_dict(self) -> dict:
        """Return the count."""
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        """Take up the count."""
        self.count = state["count"]


class Unpicklable(Remembering):
    """The same with something in its state that no file can hold."""

    def state_dict(self) -> dict:
        """Return the count as a function."""
        return {"count": lambda: self.count}


class Refusing(Remembering):
    """The same with a state that it does not understand itself."""

    def load_state_dict(self, state: dict) -> None:
        """Look for a key of another version."""
        self.count = state["last_epoch"]


@pytest.mark.parametrize(
    ("scheduler", "phases"),
    [
        (Remembering, {"run", "resumed"}),
        (Forgetful, {"run", "rebuilt"}),
        (Unpicklable, {"run", "unsaved"}),
        (Refusing, {"run", "unloaded"}),
    ],
)
def test_a_resume_goes_through_a_file(scheduler: type, phases: set[str]) -> None:
    """What becomes of the state is told apart in the trace; one that is not there is a note."""
    schedule = tg.Schedule(scheduler, warmup=8, total=20, base_rate=1.0)
    assert {tick.phase for tick in ticks(schedule, "resume")} == phases
    assert bool(broken(schedule, "resume_continues_the_schedule")) == bool(
        phases & {"unsaved", "unloaded"}
    )


def test_a_rule_of_metrics_without_a_state_breaks() -> None:
    """A training can advance a count anew by as many steps; nobody has the metrics again."""
    assert broken(tg.Schedule(Waiting, total=20), "resume_continues_the_schedule")


def test_a_run_is_saved_in_the_warmup_and_in_the_middle() -> None:
    """Each resumed drive goes on from its own step to the end."""
    resumed = ticks(tg.Schedule(Remembering, warmup=8, total=20), "resume", "resumed")
    assert sorted({t.label for t in resumed}) == ["saved at step 10", "saved at step 4"]
    assert [t.step for t in resumed if t.label == "saved at step 4"] == list(range(4, 20))


def test_a_plateau_rule_is_saved_while_it_counts() -> None:
    """Saved between two cuts, so that a forgotten count shows."""
    schedule = tg.Schedule(lr.ReduceLROnPlateau, arguments={"patience": 4}, patience=4)
    point = ticks(schedule, "resume", "resumed")[0].step
    cuts = [t.step for t in ticks(schedule, "resume", "run") if t.rates[0] < 1e-3]
    assert cuts[0] < point
    assert broken(schedule, "resume_continues_the_schedule") == []


def test_a_function_has_nothing_to_resume() -> None:
    """A function of the step has no state: nothing is driven, and nothing is broken."""
    assert ticks(tg.Schedule(lambda step: 1.0 / (1 + step)), "resume") == []


def cosine(optimizer: Any) -> lr.LRScheduler:
    """Return a cosine that is computed from the epoch alone."""
    return lr.LambdaLR(optimizer, lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / 100)))


def warmup(optimizer: Any) -> lr.LRScheduler:
    """Return a warmup that multiplies the rate it finds."""
    return lr.LinearLR(optimizer, 0.1, total_iters=10)


@pytest.mark.parametrize(
    ("parts", "fights"),
    [
        ((warmup, cosine), True),
        ((cosine, warmup), True),
        ((cosine, lambda o: lr.CosineAnnealingLR(o, 100)), True),
        ((cosine, lambda o: lr.StepLR(o, 30)), True),
        ((cosine, lambda o: lr.ReduceLROnPlateau(o, patience=5)), True),
        ((warmup, lambda o: lr.ExponentialLR(o, 0.97)), False),
        ((lambda o: lr.CosineAnnealingLR(o, 100), warmup), False),
        ((lambda o: lr.StepLR(o, 30), lambda o: lr.ReduceLROnPlateau(o, patience=5)), False),
        ((lambda o: lr.MultiStepLR(o, [30]), lambda o: lr.MultiStepLR(o, [60])), False),
        ((cosine, cosine), False),
        ((cosine, lambda o: lr.ConstantLR(o, 1.0)), False),
        ((warmup,), False),
    ],
)
def test_who_fights_is_found_by_leaving_one_out(parts: tuple, fights: bool) -> None:
    """Closed forms overwrite what multiplies, in either order; what multiplies gets along."""
    schedule = tg.Schedule(
        lambda optimizer: [part(optimizer) for part in parts], total=100, base_rate=0.1
    )
    assert bool(broken(schedule, "schedulers_do_not_fight")) == fights


def test_schedulers_that_a_loop_advances_itself_are_seen() -> None:
    """With `advance`, the steps are found by interception: here both are stepped, and fight."""
    schedule = tg.Schedule(
        lambda optimizer: {"warmup": warmup(optimizer), "main": cosine(optimizer)},
        advance=lambda both, _step: (both["warmup"].step(), both["main"].step()),
        total=100,
    )
    assert broken(schedule, "schedulers_do_not_fight") == ["it changes the rate by 0 %"]


def test_groups_of_their_own_are_no_fight() -> None:
    """Two schedulers that each set one group write nothing over."""

    class OneGroup:
        """Halve the rate of one group only."""

        def __init__(self, optimizer: Any, group: int) -> None:
            self.group = optimizer.param_groups[group]

        def step(self) -> None:
            """Halve the rate."""
            self.group["lr"] *= 0.9

    def optimizer() -> Any:
        first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        return torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=0.1)

    schedule = tg.Schedule(
        lambda optimizer: [OneGroup(optimizer, 0), OneGroup(optimizer, 1)],
        optimizer=optimizer,
        total=20,
    )
    assert broken(schedule, "schedulers_do_not_fight") == []


def test_a_scheduler_with_slots_is_not_judged() -> None:
    """What cannot be left out is skipped with a reason."""

    class Slotted:
        """A scheduler on which no attribute can be set."""

        __slots__ = ("optimizer",)

        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self) -> None:
            """Do nothing."""

    schedule = tg.Schedule(lambda optimizer: [Slotted(optimizer), Slotted(optimizer)], total=5)
    with pytest.raises(Unjudged, match="slots"):
        ticks(schedule, "overwrite")


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [0, 3, 100])
def test_the_metrics_do_what_their_names_say(mode: Any, patience: int) -> None:
    """Each sequence stands still or improves by a tenth within the patience, above or below 0."""
    length = 2 * (patience + 2) + 2
    for name, sequence in SEQUENCES.items():
        metrics = [sequence(mode, patience)(step) for step in range(length)]
        assert math.isnan(metrics[0]) == ("nan" in name)
        rest = metrics[1:]
        assert all((metric < 0) == ("negative" in name) for metric in rest)
        change = rest[-1] - rest[0]
        assert (change == 0) == ("flat" in name)
        if "improving" in name:
            assert (change < 0) == (mode == "min")
            window = rest[max(1, patience - 1)] - rest[0]
            assert abs(window) > 0.05 * abs(rest[0])


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [0, 1, 2, 10, 40])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_torchs_own_rule_is_passed(mode: Any, patience: int, threshold_mode: str) -> None:
    """Whatever its patience, mode, threshold and cooldown, on metrics above zero."""
    arguments = {"mode": mode, "patience": patience, "threshold_mode": threshold_mode}
    schedule = tg.Schedule(
        lr.ReduceLROnPlateau,
        arguments={**arguments, "cooldown": 2},
        patience=patience,
        mode=mode,
        metrics=(1.0,),
        shape="plateau",
    )
    tg.check(schedule, devices=["cpu"])
