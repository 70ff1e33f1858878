"""By how much each value that is handed to backward multiplies one loss function."""

import pytest
import torch
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, closures, network, scaled
from trainguard.events.loop import Step
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients import autograd_graph


def weights(train, *arguments, **options) -> list[tuple[float, ...]]:
    """Record a training and return the weights of each step."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(*arguments, **options)
    return [event.weights for event in recorder.trace if isinstance(event, Step)]


def accumulated(scale, micro: int = 4, steps: int = 2) -> None:
    """Train with gradients accumulated; `scale` makes the loss of a mean, or of what it likes."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index, (inputs, target) in enumerate(batches(steps * micro, 8)):
        output = model(inputs)
        scale(F.mse_loss(output, target), output).backward()
        if index % micro == micro - 1:
            optimizer.step()
            optimizer.zero_grad()


CONSTANTS = {
    "as it is": (lambda loss: loss, 1),
    "divided": (lambda loss: loss / 4, 0.25),
    "times": (lambda loss: 0.5 * loss, 0.5),
    "by a tensor": (lambda loss: torch.tensor(3.0) * loss * torch.tensor([2.0]), 6),
    "negative": (lambda loss: -loss, -1),
    "subtracted": (lambda loss: 1 - loss, -1),
    "a sum of one": (lambda loss: sum([loss]), 1),
    "a mean of one": (lambda loss: loss.mean(), 1),
    "reshaped": (lambda loss: loss.double().reshape(1).squeeze() / 2, 0.5),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_multiples_are_told(name: str) -> None:
    """What is done to the mean between the loss function and backward is followed."""
    change, weight = CONSTANTS[name]
    told = weights(accumulated, lambda loss, _: change(loss))
    assert told == [(weight,) * 4] * 2


def test_in_place_changes_are_followed() -> None:
    """`loss /= 4` changes the value that the function returned, and the graph knows by what."""

    def divided(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Divide it in place."""
        loss /= 4
        return loss

    assert weights(accumulated, divided) == [(0.25,) * 4] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda loss, output: loss + 0.1 * output.square().mean(),
        lambda loss, output: loss + F.l1_loss(output, output.detach()),
        lambda loss, output: loss * output.mean(),
        lambda loss, output: 1 / loss,
        lambda loss, output: loss.sqrt(),
        lambda loss, output: output.square().mean(),
        lambda loss, output: F.mse_loss(output, output + 1, reduction="sum"),
    ],
    ids=["plus", "two", "learned", "inverse", "root", "by hand", "sum"],
)
def test_what_is_no_multiple_of_one_mean_has_no_weight(change) -> None:
    """Sums of parts, functions that are not linear and other reductions have none."""
    assert weights(accumulated, change) == [()] * 2


def test_a_scaler_is_no_part_of_it() -> None:
    """Weights are those of the unscaled loss."""
    assert weights(scaled, 6) == [(1.0,)] * 6


def test_a_closure_has_the_weight_of_its_first_call() -> None:
    """L-BFGS computes the loss several times; the step has one."""
    assert weights(closures) == [(1.0,)] * 4


def test_losses_of_two_places_are_not_compared() -> None:
    """A critic's losses of real and made samples are no micro-batches of one."""

    def train() -> None:
        """Train on the loss of two lines."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, target in batches(2):
            F.mse_loss(model(inputs), target).backward()
            F.mse_loss(model(-inputs), -target).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert weights(train) == [()] * 2


def test_gradients_that_were_thrown_away_have_no_weight() -> None:
    """A backward whose gradients are cleared before the step is no part of it."""

    def train() -> None:
        """Warm up with a backward, clear it, and train."""
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, target in batches(3):
            for divisor in (8, 2, 2):
                (F.mse_loss(model(inputs), target) / divisor).backward()
                if divisor == 8:
                    optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()

    assert weights(train) == [(0.5, 0.5)] * 3


def test_a_mean_over_several_values_is_no_multiple() -> None:
    """A reduction of one number changes nothing; one of several is not a multiple of any."""
    leaf = torch.ones(3, requires_grad=True)
    for count, found in ((3, False), (1, True)):
        values = leaf[:count].exp()
        autograd_graph.mark(values.grad_fn, "values")
        assert (autograd_graph.multiple(values.sum()) is not None) == found
        assert (autograd_graph.multiple(values.mean() / 2) == ("values", 0.5)) == found


@pytest.mark.parametrize(
    ("reduce", "found"),
    [
        (lambda values: values.sum() / values.numel(), True),
        (lambda values: values.mean(1).mean(), True),
        (lambda values: values.sum(1).mean() / 3, True),
        (lambda values: values.sum(1).mean(), False),
        (lambda values: values.mean() / 2, False),
        (lambda values: (values * torch.ones(2, 3)).mean(), False),
        (lambda values: values.mean() + values.sqrt().mean(), False),
    ],
    ids=["sum", "means", "scaled", "over samples", "half", "weighted", "two"],
)
def test_a_mean_by_hand_is_known(reduce, found: bool) -> None:
    """What is a plain mean of the numbers that a loss function returned is one, however made."""
    values = torch.ones(2, 3, requires_grad=True).exp()
    autograd_graph.mark(values.grad_fn, "values")
    assert (autograd_graph.mean_of_several(reduce(values)) == "values") == found


def test_the_graph_tells_its_shapes() -> None:
    """What a reduction was given, and what an operation returned, is read from the graph."""
    leaf = torch.ones(5, 1, requires_grad=True)
    mean = (leaf - torch.ones(5)).square().mean()
    assert autograd_graph.sizes(mean.grad_fn) == (5, 5)
    assert autograd_graph.elements(mean.grad_fn) == 25
    power = mean.grad_fn.next_functions[0][0]
    (before, output), _ = power.next_functions[0][0].next_functions
    assert autograd_graph.shape_after(mean, before, output) == (5, 1)
    assert [autograd_graph.kind_of(node) for node in autograd_graph.below(mean.grad_fn, 3)] == [
        "MeanBackward",
        "PowBackward",
        "SubBackward",
    ]
