"""States that are loaded in part: what is left out was trained with them, or was not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


class Net(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each sample."""
        return self.head(self.body(inputs).tanh())


def fit(model: nn.Module, steps: int = 4) -> None:
    """Train a model further, with an optimizer of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, target in batches(steps):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        optimizer.step()


def evaluate(model: nn.Module) -> None:
    """Call a model without a graph."""
    with torch.no_grad():
        model(torch.ones(2, 4))


def bodies(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of what a model has in its body, but for its head."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if n.startswith("body")}


def restored(after=lambda model: None, change=lambda state: state, head: bool = False) -> list:
    """Return the probes of a run that restores the body of an earlier step and evaluates."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = Net()
        fit(model)
        evaluate(model)
        state = change(copy.deepcopy(model.state_dict()) if head else bodies(model))
        fit(model)
        model.load_state_dict(state, strict=False)
        evaluate(model)
        after(model)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "partial"]


def test_a_body_of_one_step_under_a_head_of_another_is_told() -> None:
    """It says of which step the state is, and what it lacks."""
    (probe,) = restored()
    assert (probe.measured, probe.reference, probe.step) == (2.0, 1.0, 8)
    assert probe.label == "Net, a state of step 4 without `head.weight`, `head.bias`"


@pytest.mark.parametrize(
    "options",
    [
        {"head": True},
        {"after": fit},
        {"change": lambda state: {name: value + 1 for name, value in state.items()}},
    ],
    ids=["whole", "trained on", "other values"],
)
def test_what_is_whole_or_trained_on_or_never_was_is_not_told(options) -> None:
    """A mean of several bodies is no earlier state, and a head may be trained for the body."""
    assert restored(**options) == []


def test_a_new_module_that_lacks_what_was_trained_is_a_note() -> None:
    """Its head is as it was drawn."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model, other = Net(), Net()
        fit(model)
        model.state_dict()
        other.load_state_dict(bodies(model), strict=False)
        evaluate(other)
    (probe,) = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "partial"]
    assert (probe.measured, probe.reference) == (2.0, 0.0)
