"""What the recorder sees of learning rates and of schedulers."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Scheduler, Step
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def recorded(make, *, early: bool = False, advance: bool = True, steps: int = 6, **options):
    """Record a training with a scheduler; return its steps and what became of schedulers."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = make(optimizer, **options)
        for inputs, target in batches(steps):
            if early and advance:
                scheduler.step()
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if advance and not early:
                scheduler.step()
    trace = recorder.trace
    return (
        [event for event in trace if isinstance(event, Step)],
        [event for event in trace if isinstance(event, Scheduler)],
    )


def place(source: str) -> tuple[str, int]:
    """Return the file and the number of a line."""
    file, _, line = source.rpartition(":")
    return file, int(line)


def test_the_rate_in_force_is_recorded() -> None:
    """Each step has the rate that it was made with, and what the scheduler said it would be."""
    steps, (scheduler,) = recorded(lr_scheduler.ExponentialLR, gamma=0.5)
    assert [step.rates[0] for step in steps] == pytest.approx([0.1 * 0.5**i for i in range(6)])
    assert [step.reported for step in steps[1:]] == [step.rates for step in steps[1:]]
    assert (scheduler.name, scheduler.optimizer) == ("ExponentialLR", "SGD")
    assert (scheduler.calls, scheduler.early) == (6, 0)
    assert "test_rates.py:" in scheduler.source
    assert "scheduler.step()" in linecache.getline(*place(scheduler.advanced))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_scheduler_before_its_optimizer_is_seen() -> None:
    """The order has it in the first window, and one call was early."""
    steps, (scheduler,) = recorded(lr_scheduler.ExponentialLR, gamma=0.5, early=True)
    assert steps[0].order[0] == "schedule"
    assert (scheduler.calls, scheduler.early) == (6, 1)


def test_a_scheduler_that_is_never_advanced_is_seen() -> None:
    """What its constructor does is no advance."""
    _, (scheduler,) = recorded(lr_scheduler.ExponentialLR, gamma=0.5, advance=False)
    assert (scheduler.calls, scheduler.advanced) == (0, "")


def test_a_scheduler_that_may_wait_for_something_is_told() -> None:
    """A line of this file advances one; that does not excuse a rate that never left its warmup."""
    _, (waiting,) = recorded(lr_scheduler.ExponentialLR, gamma=0.5, advance=False)
    _, (stuck,) = recorded(lr_scheduler.LinearLR, start_factor=0.1, advance=False)
    assert (waiting.conditional, stuck.conditional) == (True, False)


def test_a_scheduler_nobody_advances_waits_for_nothing(tmp_path) -> None:
    """A commented line is none."""
    file = tmp_path / "build.py"
    file.write_text(
        "from torch.optim.lr_scheduler import ExponentialLR\n"
        "def build(optimizer):\n"
        "    return ExponentialLR(optimizer, 0.5)\n"
        "# scheduler.step()\n"
    )
    made = {}
    exec(compile(file.read_text(), str(file), "exec"), made)
    _, (scheduler,) = recorded(made["build"], advance=False)
    assert scheduler.source == f"{file}:3"
    assert not scheduler.conditional
    assert not scheduler.inert  # a comment may be switched on again by hand


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # SequentialLR of torch 2.4
def test_a_scheduler_of_schedulers_counts_once_for_each_step() -> None:
    """Its parts are met too, and the order has one word for one call."""

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        """Return a warmup and a decay in turn."""
        parts = [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
            lr_scheduler.CosineAnnealingLR(optimizer, 4),
        ]
        return lr_scheduler.SequentialLR(optimizer, parts, [2])

    steps, schedulers = recorded(make)
    assert {s.name: s.calls for s in schedulers}["SequentialLR"] == 6
    assert [step.order.count("schedule") for step in steps] == [0, 1, 1, 1, 1, 1]
    assert all(step.reported in ((), step.rates) for step in steps)


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # SequentialLR of torch 2.4
@pytest.mark.parametrize(
    ("low", "high", "needs", "cut"),
    [
        (0.01, 1.0, 9, (2.0, 9.0)),
        (0.01, 1.0, 5, (2.0, 5.0)),
        (0.01, 1.0, 4, None),  # half of the way is a choice
        (0.01, 1.0, 2, None),
        (0.6, 1.0, 9, None),  # leaps by less than it begins with
        (1.0, 0.1, 9, None),  # a decay
        (0.01, 1.0, 0, None),
    ],
)
def test_a_warmup_is_left_too_early(
    low: float, high: float, needs: int, cut: tuple[float, float] | None
) -> None:
    """As far as the sequence was driven past it."""

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        """Return a warmup and a decay in turn."""
        climb = lr_scheduler.LinearLR(optimizer, low, high, total_iters=needs)
        parts = [climb, lr_scheduler.CosineAnnealingLR(optimizer, 4)]
        return lr_scheduler.SequentialLR(optimizer, parts, [2])

    assert [(p.measured, p.reference) for p in cut_warmups(make, 6)] == ([cut] if cut else [])
    assert cut_warmups(make, 2) == []


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # SequentialLR of torch 2.4
@pytest.mark.parametrize(
    ("follow", "cut"),
    [
        (lambda own: lr_scheduler.ConstantLR(own, 0.1, total_iters=9), 0),
        (lambda own: lr_scheduler.LinearLR(own, 0.2, total_iters=9), 0),
        (lambda own: lr_scheduler.LambdaLR(own, lambda _: 0.1), 0),
        (lambda own: lr_scheduler.ExponentialLR(own, 0.9), 1),
    ],
    ids=["constant", "another climb", "a function", "a decay"],
)
def test_what_goes_on_from_there_is_no_leap(follow: Callable, cut: int) -> None:
    """A ramp of two parts, and a function that may begin anywhere."""

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        """Return a climb that is left at a fifth, and what follows."""
        climb = lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [climb, follow(optimizer)], [2])

    assert len(cut_warmups(make, 6)) == cut


def cut_warmups(
    make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], steps: int
) -> list[Probe]:
    """Drive a schedule for some steps, and return the warmups that it left too early."""
    with Recorder("x") as recorder:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = make(optimizer)
        for at, (inputs, target) in enumerate(batches(steps)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if at + 1 < steps:
                scheduler.step()
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "cut warmup"]


def test_the_size_of_a_step_is_a_length() -> None:
    """Under its own name, since a schedule goes on after it."""
    _, (scheduler,) = recorded(lr_scheduler.StepLR, step_size=4)
    assert (scheduler.length, scheduler.setting) == (4, "step_size")


def test_a_rate_that_is_written_over_differs_from_the_reported_one() -> None:
    """The step has the rate in force, and beside it what the scheduler believes."""
    with Recorder("x") as recorder:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        for inputs, target in batches(3):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            scheduler.step()
            optimizer.param_groups[0]["lr"] = 0.7
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert [step.rates for step in steps[1:]] == [(0.7,), (0.7,)]
    assert [step.reported for step in steps[1:]] == [(0.05,), (0.35,)]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_scheduler_of_an_optimizer_that_never_steps_is_told() -> None:
    """It drives nothing that trains."""
    with Recorder("x") as recorder:
        model = network()
        old = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(old, 0.5)
        optimizer = torch.optim.Adam(model.parameters())
        for inputs, target in batches(3):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            scheduler.step()
    (seen,) = (event for event in recorder.trace if isinstance(event, Scheduler))
    assert (seen.optimizer, seen.calls) == ("", 3)


def test_classes_made_during_a_recording_are_heard_and_left_as_they_were() -> None:
    """A scheduler of the user's own counts too."""

    class Own(lr_scheduler.LRScheduler):
        """Halves the rate."""

        def get_lr(self) -> list[float]:
            """Return the rates."""
            return [base * 0.5**self.last_epoch for base in self.base_lrs]

        def step(self, epoch=None) -> None:
            """Advance."""
            super().step(epoch)

    before = vars(Own)["step"]
    _, (scheduler,) = recorded(Own)
    assert scheduler.calls == 6
    assert vars(Own)["step"] is before


@pytest.mark.parametrize(
    ("make", "options", "floor"),
    [
        (lr_scheduler.CosineAnnealingLR, {"T_max": 6, "eta_min": 0.3}, [(0.3, 0.1)]),
        (lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 6, "eta_min": 0.3}, [(0.3, 0.1)]),
        (lr_scheduler.CosineAnnealingLR, {"T_max": 6, "eta_min": 0.1}, []),
        (lr_scheduler.CosineAnnealingLR, {"T_max": 6}, []),
    ],
)
def test_a_floor_above_the_rate(make, options, floor) -> None:
    """A schedule that anneals upwards is told, where it was advanced."""
    assert annealed(make, options) == floor
    assert annealed(make, options, advance=False) == []


def annealed(make, options, advance: bool = True) -> list[tuple[float, float]]:
    """Return the rate that a schedule anneals to, and that it begins with, where it is told."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        scheduler = make(optimizer, **options)
        for inputs, target in batches(4):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            if advance:
                scheduler.step()
    assert ("high floor" in recorder.trace.conditions["looked"]) == advance
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "high floor"]
    return [(probe.measured, probe.reference) for probe in found]


class Bold(lr_scheduler.ConstantLR):
    """A scheduler of one's own, which takes what it likes."""

    def step(self, loss: float = 0.0) -> None:
        """Forget the loss."""
        super().step()


@pytest.mark.parametrize("kind", [lr_scheduler.ReduceLROnPlateau, Bold])
def test_schedulers_that_are_told_a_loss_on_purpose(kind) -> None:
    """Their argument is no epoch."""
    with Recorder("x") as recorder:
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scheduler = kind(optimizer)
        for val_loss in (0.7, 0.6, 0.65, 0.5):
            layer(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            scheduler.step(val_loss)
    assert "faults" not in recorder.trace.conditions
    assert "told epochs" not in recorder.trace.conditions["looked"]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([0.7, 0.6, 0.65, 0.5], (4, 2, 4)),
        ([0.25, 0.5, 0.75, 1.0], None),  # parts of an epoch
        ([3, 2, 1, 0], None),
        ([0, 1, 2, 3], None),
        ([], None),
    ],
)
def test_what_schedulers_are_told(told: list[float], found: tuple[int, int, int] | None) -> None:
    """Losses go back again, and are no whole numbers."""
    with Recorder("x") as recorder:
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=9)
        for val_loss in told:
            layer(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            scheduler.step(val_loss)
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "told epochs"]
    assert [(p.measured, p.reference, p.step) for p in probes] == ([found] if found else [])
    assert all(p.label == "CosineAnnealingWarmRestarts val_loss" for p in probes)
    assert ("told epochs" in recorder.trace.conditions["looked"]) == bool(told)
