"""What the recorder says of a loss beside that of a prediction that knows no input."""

from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.fit import BaselineFit
from trainguard.observe.loop.alike_samples import AlikeSamples
from trainguard.observe.loop.recorder import Recorder


def fits_of(loss, targets: torch.Tensor, steps: int = 60, width: int = 1) -> list[BaselineFit]:
    """Train a linear model on random inputs for a few steps, and return what was compared."""
    torch.manual_seed(0)
    model = nn.Linear(4, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(len(targets), 4)
    with Recorder("x") as recorder:
        for _ in range(steps):
            rows = torch.randperm(len(targets))[:32]
            optimizer.zero_grad()
            loss(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    return [event for event in recorder.trace if isinstance(event, BaselineFit)]


def squares(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean of the squared differences."""
    return F.mse_loss(output, wanted)


CLASSES = torch.arange(320) % 4
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1.386),
        ({"weight": WEIGHTS}, 1.280),
        ({"label_smoothing": 0.2}, 1.386),
        ({"ignore_index": 0}, 1.099),
        ({"reduction": "sum"}, 32 * 1.386),
    ],
)
def test_class_frequencies(options: dict, expected: float) -> None:
    """The best constant for classes is how often each came, as the function weighs them."""
    (found,) = fits_of(lambda x, y: F.cross_entropy(x, y, **options), CLASSES, width=4)
    assert found.constants[-1] == pytest.approx(expected, rel=0.06)
    assert (found.calls, found.only, found.inputs > 200) == (59, 1.0, True)


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"])
def test_means_of_numbers(name: str) -> None:
    """For numbers it is their mean, and the loss of that is what the function itself returns."""

    def loss(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Look the function up when it is called, as scripts do."""
        value: torch.Tensor = getattr(F, name)(output, wanted)
        return value

    torch.manual_seed(1)
    targets = torch.randn(320, 1) * 3 + 7
    (found,) = fits_of(loss, targets)
    expected = loss(targets.mean().expand_as(targets), targets).item()
    assert sum(found.constants) / 59 == pytest.approx(expected, rel=0.1)
    assert found.losses[-1] > 2 * found.constants[-1]


def test_a_sum_by_hand() -> None:
    """It is compared with the sum of what the constant is off, whatever it is divided by."""
    torch.manual_seed(1)
    targets = torch.randn(320, 1)
    (found,) = fits_of(lambda x, y: (x - y).square().sum() / 128, targets)
    squares_of_all = 32 * targets.var().item()
    assert sum(found.constants) / 59 == pytest.approx(squares_of_all, rel=0.1)


def test_an_input_that_teaches() -> None:
    """A regression on examples tells targets that follow from inputs from those that do not."""
    torch.manual_seed(0)
    noise = torch.randn(320, 1)
    (found,) = fits_of(squares, noise)
    assert found.learnable < 0.2
    torch.manual_seed(0)
    nn.Linear(4, 1)  # draws as the model will
    taught = torch.randn(320, 4).sum(1, keepdim=True)
    (found,) = fits_of(squares, taught)
    assert found.learnable > 0.8


def test_a_target_that_learns_is_left_alone() -> None:
    """Two outputs that are compared with each other have no target."""
    assert fits_of(lambda x, y: F.mse_loss(x, 2 * x + y), torch.randn(320, 1)) == []


def test_one_output_for_all() -> None:
    """Outputs that are the same for all samples are counted to the end of the run."""
    (found,) = fits_of(lambda x, y: F.mse_loss(x * 0 + x.mean(), y), torch.randn(320, 1))
    assert (found.alike, found.blank) == (60, 0)


def test_no_random_number_is_drawn() -> None:
    """The run is the one that it would have been."""
    (found,) = fits_of(squares, torch.randn(320, 1), steps=3)
    after = torch.rand(3)
    torch.manual_seed(0)
    nn.Linear(4, 1)
    torch.randn(320, 4)
    for _ in range(3):
        torch.randperm(320)
    assert found.calls == 2
    assert torch.equal(after, torch.rand(3))


def test_one_number_for_each_sample() -> None:
    """Its average is no table of classes."""
    (found,) = fits_of(lambda x, y: F.mse_loss(x.sum(1), y), torch.randn(320))
    assert (found.calls, found.classes, found.single) == (59, 0, -1)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_one_output_for_all_at_times(scale: float) -> None:
    """One batch whose outputs differ ends the count, and what comes after it begins another."""
    calls = iter(range(60))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of the mean output, in the 41st call of each by itself."""
        return F.mse_loss(x if next(calls) == 40 else x * 0 + x.mean(), y * scale)

    (found,) = fits_of(loss, torch.randn(320, 1))
    assert (found.alike, found.blank) == (19, 0)


@pytest.mark.parametrize("state", [torch.zeros(1, 32, 6), torch.zeros(32, 6)])
def test_a_state_of_zeros_before_the_samples(state: torch.Tensor) -> None:
    """An empty state that comes first says nothing of the samples, which come second."""
    torch.manual_seed(0)

    class Tagger(nn.Module):
        """A recurrent layer that is given its state first, as some tutorials write it."""

        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNN(4, 6) if state.dim() == 3 else nn.RNNCell(4, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            """Return the scores of each sample."""
            out = self.cell(words[None] if hidden.dim() == 3 else words, hidden)
            return self.head(out[0][-1] if hidden.dim() == 3 else out)

    model, inputs, targets = Tagger(), torch.randn(32, 4), torch.arange(32) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(state, inputs), targets).backward()
            optimizer.step()
    (found,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    assert (found.alike, found.blank) == (0, 0)
    assert "faults" not in recorder.trace.conditions


def test_one_sequence_whose_places_are_samples() -> None:
    """A batch of one row is not the same for all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(0, 1), nn.Linear(4, 5))
    tokens = torch.tensor([[0, 1, 0, 2, 3, 3]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens[0]).backward()
            optimizer.step()
    (found,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    assert (found.alike, found.blank) == (0, 0)


def test_a_model_that_is_lost() -> None:
    """Outputs without end are compared without a warning, and are not the same."""
    samples = AlikeSamples()
    given, scores = torch.randn(8, 4), torch.full((8, 3), float("inf"))
    samples.add(1, given, scores, torch.arange(8), in_units=False)
    assert samples.describe() == {"alike": 0, "blank": 0}


def evaluated(evaluation: torch.Tensor, rows: int = 128, spread: float = 1.0) -> BaselineFit:
    """Train on noise, evaluate on one batch in each epoch, and return what was compared."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 1), spread * torch.randn(320, 4)
    noise, other = torch.randn(320, 1), torch.randn(rows, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Recorder("x") as recorder:
        for _ in range(6):
            for batch in torch.randperm(320).split(32):
                optimizer.zero_grad()
                F.mse_loss(model(inputs[batch]), noise[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                F.mse_loss(model(other), other @ evaluation)
    assert "faults" not in recorder.trace.conditions
    (found,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    return found


def test_pairs_of_an_evaluation_teach() -> None:
    """Where those of the training do not: one batch of them is enough, if it is large."""
    found = evaluated(torch.ones(4, 1))
    assert found.learnable < 0.05
    assert found.evaluated > 0.9
    assert not evaluated(torch.zeros(4, 1)).evaluated > 0.05
    few = evaluated(torch.ones(4, 1), rows=32)
    assert isnan(few.evaluated)
    assert isnan(few.farther)


@pytest.mark.parametrize(("spread", "least", "most"), [(1.0, 0.85, 1.15), (1.6, 1.3, 3.0)])
def test_inputs_that_are_as_near_as_those_of_an_evaluation(spread, least, most) -> None:
    """They are, if both are of one kind."""
    assert least < evaluated(torch.ones(4, 1), spread=spread).farther < most


def test_pairs_of_an_evaluation_are_not_asked_where_the_training_teaches() -> None:
    """It says all that there is to be said."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 1), torch.randn(320, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Recorder("x") as recorder:
        for batch in [*torch.randperm(320).split(32)] * 6:
            optimizer.zero_grad()
            F.mse_loss(model(inputs[batch]), inputs[batch].sum(1, keepdim=True)).backward()
            optimizer.step()
            with torch.no_grad():
                F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    (found,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    assert found.learnable > 0.8
    assert isnan(found.evaluated)


def test_pairs_whose_accuracy_alone_is_measured() -> None:
    """What lies beside the input, and is compared with what is predicted."""
    torch.manual_seed(0)
    model, inputs, wanted = nn.Linear(4, 3), torch.randn(320, 4), torch.randint(3, (320,))
    others = torch.randn(128, 4)
    classes = others[:, :3].argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Recorder("x") as recorder:
        for _ in range(6):
            for batch in torch.randperm(320).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[batch]), wanted[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                right = (model(others).argmax(1) == classes).float().mean().item()
            print(f"accuracy {right:.3f}")
    assert "faults" not in recorder.trace.conditions
    (found,) = [event for event in recorder.trace if isinstance(event, BaselineFit)]
    assert found.learnable < 0.05
    assert found.evaluated > 0.5
