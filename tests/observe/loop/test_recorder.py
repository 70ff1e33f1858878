"""The recorder on real trainings: one Step for each step of an optimizer, and nothing disturbed."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import (
    accumulated,
    adversaries,
    batches,
    by_hand,
    closures,
    network,
    plain,
    scaled,
)
from trainguard.events.loop import Step
from trainguard.observe.loop.recorder import Recorder


def record(train, *arguments, steps=None, **options) -> list[Step]:
    """Record a training and return its steps."""
    torch.manual_seed(0)
    with Recorder("x", steps=steps) as recorder:
        train(*arguments, **options)
    return [event for event in recorder.trace if isinstance(event, Step)]


def test_each_step_is_recorded() -> None:
    """A plain loop gives one Step for each step, from the line that made it."""
    steps = record(plain, 6)
    assert [step.step for step in steps] == [0, 1, 2, 3, 4, 5]
    assert {step.optimizer for step in steps} == {"SGD"}
    assert all("trainings.py:" in step.source for step in steps)
    assert [step.order for step in steps[1:]] == [("zero", "forward", "backward")] * 5


def test_losses_are_those_of_the_loop() -> None:
    """The loss of a Step is bit for bit what the loop computed."""
    seen: list[float] = []

    def train() -> None:
        """Train, and keep each loss."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, target in batches(5):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), target)
            loss.backward()
            seen.append(loss.item())
            optimizer.step()

    assert [step.loss for step in record(train)] == seen


def test_two_optimizers_have_their_own_windows() -> None:
    """Each gets the losses that reached its parameters and were not cleared before its step."""
    steps = record(adversaries, 4)
    critic = [step for step in steps if step.optimizer == "Adam"]
    generator = [step for step in steps if step.optimizer == "Adam#2"]
    assert [len(step.losses) for step in critic] == [2] * 4
    assert [len(step.losses) for step in generator] == [1] * 4
    assert [step.leftover for step in steps] == [0.0] * 8


def test_a_closure_is_measured_after_it_ran() -> None:
    """L-BFGS gives one Step for each call of step, with the loss that its first closure saw."""
    steps = record(closures, 4)
    assert len(steps) == 4
    assert all(len(step.losses) == 1 and step.norm > 0 and step.update > 0 for step in steps)
    assert steps[-1].loss < steps[0].loss


@pytest.mark.parametrize("through_data", [False, True])
def test_steps_by_hand_are_seen(through_data: bool) -> None:
    """Parameters that move after a backward without an optimizer make a step."""
    steps = record(by_hand, 5, through_data=through_data)
    assert [step.optimizer for step in steps] == ["by hand"] * 5
    assert all(step.norm > 0 and step.loss > 0 and step.received == 4 for step in steps)


@pytest.mark.parametrize("none", [True, False])
def test_accumulation_is_one_step(none: bool) -> None:
    """A window has one loss for each micro-batch, and no leftover however gradients are cleared."""
    steps = record(accumulated, 3, none=none)
    assert [len(step.losses) for step in steps] == [4, 4, 4]
    assert [step.leftover for step in steps] == [0.0, 0.0, 0.0]


def test_a_leftover_is_the_norm_of_the_last_step() -> None:
    """Without zero_grad, the first backward of a window finds what the last step has used."""
    steps = record(accumulated, 3, zero=False)
    assert steps[0].leftover == 0.0
    assert [step.leftover for step in steps[1:]] == pytest.approx([s.norm for s in steps[:-1]])
    assert steps[1].leftover_name.startswith("Sequential.")


@pytest.mark.parametrize("clears", [True, False])
def test_what_is_frozen_for_another_turn_keeps_its_gradients(clears: bool) -> None:
    """As a discriminator is while its generator learns: that clears nothing."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(3, 2), nn.Linear(2, 1)
    makes = torch.optim.SGD(maker.parameters(), lr=0.01)
    judges = torch.optim.Adam(judge.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(6):
            judge.requires_grad_(True)
            if clears:
                judges.zero_grad()
            (judge(maker(torch.randn(8, 3)).detach()) - judge(torch.randn(8, 2))).mean().backward()
            judges.step()
            judge.requires_grad_(False)
            makes.zero_grad()
            judge(maker(torch.randn(8, 3))).mean().backward()
            makes.step()
    steps = [e for e in recorder.trace if isinstance(e, Step) and e.optimizer == "Adam"]
    assert [step.leftover > 0 for step in steps] == [False, *[not clears] * 5]


def test_a_scaler_is_undone() -> None:
    """Losses and norms are the unscaled ones, in steps that are skipped too."""
    usual, huge = record(scaled, 6), record(scaled, 6, scale=2.0**127)
    assert {step.scale for step in usual} == {2.0**10}
    assert usual[0].loss == huge[0].loss < 100
    assert usual[0].norm_before < 100
    assert huge[0].skipped
    assert not all(step.skipped for step in huge)


def test_a_recorded_run_is_bit_identical() -> None:
    """Parameters and random streams end where they would have ended."""
    torch.manual_seed(0)
    alone, drawn = plain(20, make=torch.optim.AdamW, clip=1.0), torch.rand(3)
    torch.manual_seed(0)
    with Recorder("x"):
        recorded = plain(20, make=torch.optim.AdamW, clip=1.0)
    assert torch.equal(torch.rand(3), drawn)
    pairs = zip(alone.parameters(), recorded.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_it_stops_after_the_steps_asked_for() -> None:
    """`finally` blocks of the training run, and the end is no error."""
    ended = []

    def train() -> None:
        """Train for very long."""
        try:
            plain(10**9)
        finally:
            ended.append(True)

    assert len(record(train, steps=3)) == 3
    assert ended == [True]


def test_an_error_passes_through() -> None:
    """What the training raises is raised, and the trace holds what came before."""
    recorder = Recorder("x")
    with pytest.raises(ZeroDivisionError), recorder:
        plain(2)
        raise ZeroDivisionError
    assert recorder.trace.conditions["ended"] == "failed"
    assert recorder.trace.conditions["steps"] == 2


def test_optimizers_made_before_are_found() -> None:
    """A recording that begins in the middle of a training misses nothing of what follows."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, target = next(batches(1))
    with Recorder("x") as recorder:
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
    (step,) = (event for event in recorder.trace if isinstance(event, Step))
    assert step.order == ("forward", "backward")
    assert step.received == 4


def test_an_optimizer_may_be_deleted() -> None:
    """One that is replaced half-way is let go, and the new one is recorded."""

    def train() -> weakref.ref:
        """Train with one optimizer, then with another."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for index, (inputs, target) in enumerate(batches(6)):
            if index == 3:
                gone = weakref.ref(optimizer)
                optimizer = torch.optim.Adam(model.parameters())
                gc.collect()
                assert gone() is None
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()

    assert [step.optimizer for step in record(train)] == ["SGD"] * 3 + ["Adam"] * 3


def test_an_optimizer_inside_another_makes_one_step() -> None:
    """A wrapper that derives from Optimizer and passes its step on is not counted twice."""

    class Lookahead(torch.optim.Optimizer):
        """Passes every step on to the optimizer inside."""

        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None) -> None:
            """Make the inner step."""
            self.inner.step(closure)

    steps = record(plain, 3, make=lambda p, lr: Lookahead(torch.optim.SGD(p, lr=lr)))
    assert [step.optimizer for step in steps] == ["SGD"] * 3


def test_parameters_that_are_frozen_for_a_while_stay_held() -> None:
    """Those of an optimizer are its own while they require no gradient, and after."""

    def train() -> None:
        """Train one half of a model after the other, in turns."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for index, (inputs, target) in enumerate(batches(8)):
            model[0].requires_grad_(index // 2 % 2 == 0)
            model[2].requires_grad_(index // 2 % 2 == 1)
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()

    steps = record(train)
    assert [step.optimizer for step in steps] == ["SGD"] * 8
    assert [step.received for step in steps] == [2] * 8


@pytest.mark.parametrize("late", [False, True])
def test_an_optimizer_that_waits_is_not_waited_for(late: bool) -> None:
    """Beside one without a step looks are as seldom as alone; the first step it makes is seen."""

    def train() -> torch.optim.Optimizer:
        """Train, and then perhaps make one step with an optimizer that was there all the time."""
        other = torch.optim.SGD([spare := torch.nn.Parameter(torch.ones(4))], lr=0.1)
        plain(103)  # after them comes one that is watched
        looks.append(recorder.looks_closer)
        if late:
            spare.square().sum().backward()
            other.step()
        return other

    looks: list[bool] = []
    with Recorder("x") as recorder:
        train()
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    assert looks == [False]
    assert [step.update > 0 for step in steps if not step.step] == [True] * (1 + late)
