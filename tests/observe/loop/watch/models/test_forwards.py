"""What the recorder sees of modules that are called: those that learn, and evaluations."""

from collections.abc import Callable
from itertools import count

import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches
from trainguard.events.loop import Evaluation, Step
from trainguard.observe.loop.recorder import Recorder


class Net(nn.Module):
    """A module whose mode matters, with a buffer."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros(1))
        self.counts = counts

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each sample."""
        if self.counts:
            self.seen += 1
        return self.last(self.drop(self.norm(self.first(inputs))))


def train(*, steps: int = 6, evaluate=None, every: int = 3, counts: bool = False) -> None:
    """Train, and call `evaluate(model)` after some of the steps."""
    model = Net(counts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index, (inputs, target) in enumerate(batches(steps)):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()
        if evaluate is not None and index % every == every - 1:
            evaluate(model)


def seen(kind, **options) -> list:
    """Record a training and return its events of one kind."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(**options)
    return [event for event in recorder.trace if isinstance(event, kind)]


def measure(model: nn.Module, *, mode: bool = True, grad: bool = False, passes: int = 3) -> None:
    """Evaluate on some batches, in evaluation mode where asked to."""
    model.train(not mode)
    with torch.set_grad_enabled(grad):
        for inputs, target in batches(passes):
            F.mse_loss(model(inputs), target)
    model.train()


def test_a_pass_that_learns_has_a_mode() -> None:
    """A module in training mode has no part asleep."""
    steps = seen(Step)
    assert {(step.trained, step.training, step.asleep) for step in steps} == {(1, True, ())}


def test_a_mode_left_on_is_seen() -> None:
    """After an evaluation that ends in evaluation mode, dropout and batch norm are asleep."""
    steps = seen(Step, evaluate=lambda model: model.eval())
    assert [step.training for step in steps] == [True] * 3 + [False] * 3
    assert steps[-1].asleep == ("Net.norm", "Net.drop")


def frozen(model: Net) -> None:
    """Freeze all but the last layer, batch statistics as well, and measure what comes out."""
    model.requires_grad_(False)
    measure(model, grad=True)
    model.last.requires_grad_(True)
    model.norm.eval()


def test_what_is_frozen_sleeps_by_right() -> None:
    """Its batch statistics are not named, and a pass through it alone builds no graph."""
    steps = seen(Step, evaluate=frozen)
    assert {step.asleep for step in steps} == {()}
    assert {event.idle for event in seen(Evaluation, evaluate=frozen)} == {False}


def test_an_evaluation_is_one_event() -> None:
    """Passes in a row without gradients are counted, with their place and mode."""
    events = seen(Evaluation, evaluate=measure)
    assert [(e.step, e.passes, e.training, e.awake, e.gradients) for e in events] == [
        (3, 3, False, (), False),
        (6, 3, False, (), False),
    ]
    assert all("test_forwards.py:" in event.source and event.module == "Net" for event in events)


def test_its_losses_are_measured() -> None:
    """What loss functions return without gradients belongs to the evaluation."""
    events = seen(Evaluation, evaluate=measure)
    assert all(event.measures and event.loss > 0 for event in events)


def test_parts_that_are_awake_are_named() -> None:
    """An evaluation in training mode names what draws or counts in it."""
    events = seen(Evaluation, evaluate=lambda model: measure(model, mode=False))
    assert [event.awake for event in events] == [("Net.norm", "Net.drop")] * 2


def test_an_evaluation_with_gradients_is_told_from_a_step() -> None:
    """A graph that no backward ever reaches was built for nothing."""
    events = seen(Evaluation, evaluate=lambda model: measure(model, grad=True), steps=9)
    assert events
    assert all(event.gradients and event.idle and event.passes == 3 for event in events)
    assert all("test_forwards.py:" in event.source for event in events)


def test_what_a_pass_changes_is_named() -> None:
    """A buffer that counts passes counts those of the evaluation too."""
    events = seen(Evaluation, evaluate=measure, counts=True)
    assert [event.touched for event in events] == [("Net.seen",)] * 2


def test_what_is_put_back_before_the_training_goes_on_is_not_named() -> None:
    """A state that was zeroed once is so at the end too, which no training follows."""

    def measure_and_reset(model: nn.Module) -> None:
        """Forget how many passes there were."""
        measure(model)
        if model.seen > 7:  # not the first time
            model.seen.zero_()

    events = seen(Evaluation, evaluate=measure_and_reset, counts=True, steps=9)
    assert [event.touched for event in events] == [("Net.seen",), (), ()]


def test_what_was_put_back_each_time_is_so_at_the_end() -> None:
    """No training follows the last evaluation, that could tell."""

    def reset_and_measure(model: nn.Module) -> None:
        """Count the passes of the evaluation alone."""
        measure(model, passes=12)
        model.seen.fill_(float(index := len(counted)))
        counted.append(index)

    counted: list[int] = []
    events = seen(Evaluation, evaluate=reset_and_measure, counts=True)
    assert [event.touched for event in events] == [(), ()]


def test_an_evaluation_changes_nothing_by_itself() -> None:
    """A module in evaluation mode leaves its buffers alone."""
    assert [event.touched for event in seen(Evaluation, evaluate=measure)] == [(), ()]


def test_weights_that_are_loaded_begin_another_evaluation() -> None:
    """The best weights, or averaged ones, are put in between two evaluations."""
    best = Net().state_dict()

    def compare(model: nn.Module) -> None:
        """Evaluate the model as it is, and with other weights."""
        measure(model)
        model.load_state_dict(best)
        measure(model)

    events = seen(Evaluation, evaluate=compare)
    assert [(event.passes, event.touched) for event in events] == [(3, ())] * 4


def test_passes_in_every_step_are_a_routine() -> None:
    """A rollout or a teacher without gradients is part of the training."""

    def roll_out(model: nn.Module) -> None:
        """Call the model without measuring anything."""
        with torch.no_grad():
            model(torch.randn(8, 4))

    events = seen(Evaluation, evaluate=roll_out, every=1)
    assert {event.routine for event in events} == {True}


def test_a_routine_of_a_second_training() -> None:
    """It comes in its own first steps; what was evaluated before it began is none."""

    def roll_out(model: nn.Module) -> None:
        """Call the model without measuring anything."""
        with torch.no_grad():
            model(torch.randn(8, 4))

    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(steps=110, evaluate=roll_out, every=100)
        train(steps=20, evaluate=roll_out, every=1)
        train(steps=110, evaluate=roll_out, every=100)
    found = [event for event in recorder.trace if isinstance(event, Evaluation)]
    assert [(e.step > 110, e.routine) for e in found[:1]] == [(False, False)]
    assert all(event.routine == (event.step >= 110) for event in found)
    assert len(found) > 10


def test_a_loss_module_is_no_pass() -> None:
    """What has no parameters is part of the loss."""
    criterion = nn.MSELoss()

    def check(model: nn.Module) -> None:
        """Measure with a module."""
        model.eval()
        with torch.no_grad():
            criterion(model(torch.randn(8, 4)), torch.randn(8, 1))
        model.train()

    assert {event.module for event in seen(Evaluation, evaluate=check)} == {"Net"}


def test_passes_over_one_input_are_counted() -> None:
    """One after the other, as samples of a model with dropout are taken; not over several."""
    assert passes_over(lambda x: x) == [(4, 0), (5, 4)]
    assert passes_over(lambda x: x[:4]) == [(4, 0), (5, 4)]  # a part that is cut out each time
    parts = count()
    assert passes_over(lambda x: x[next(parts) :]) == [(4, 0), (5, 0)]
    assert passes_over(lambda x: x + next(parts)) == [(4, 0), (5, 0)]


def passes_over(part: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[int, int]]:
    """Evaluate over four parts, then five times; return the passes and those over the same."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for step in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for rows in [x] * 5 if step else x.split(2):
                    model(part(rows) if step else rows)
    assert "faults" not in recorder.trace.conditions
    found = [event for event in recorder.trace if isinstance(event, Evaluation)]
    return [(event.passes, event.repeats) for event in found]


def test_a_loss_of_a_step_that_is_given_up() -> None:
    """A pass over what was learned through by another one is no evaluation, and one apart is."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        maker, critic = nn.Linear(4, 4), Net()
        optimizer = torch.optim.SGD([*maker.parameters(), *critic.parameters()], lr=0.05)
        for inputs, target in batches(9):
            made = maker(inputs)
            loss = F.mse_loss(critic(made), target)
            loss = F.mse_loss(critic(made), target)  # takes the place of the first
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for inputs, target in batches(3):  # without a graph in mind, and with one
            F.mse_loss(critic(maker(inputs)), target)
        for inputs, target in batches(6):
            F.mse_loss(critic(maker(inputs)), target).backward()
            optimizer.step()
    events = [event for event in recorder.trace if isinstance(event, Evaluation)]
    assert {event.step for event in events if event.module == "Net"} == {9}
