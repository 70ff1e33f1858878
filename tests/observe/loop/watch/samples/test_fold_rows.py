"""Which folds are known to go on with what others have learned."""

import copy

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def build() -> nn.Module:
    """Return a model that begins alike each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1))


def cross_validate(begin, evaluations: int = 1) -> list[Probe]:
    """Learn from three folds in turn, each with the model that is begun with."""
    rows, targets = torch.randn(90, 20), torch.randn(90, 1)
    parts, model = torch.randperm(90).chunk(3), build()
    start = copy.deepcopy(model.state_dict())
    with Recorder("x") as recorder:
        for held in parts:
            model = begin(model, start)
            rest = torch.cat([part for part in parts if part is not held])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for epoch in range(2 * evaluations):
                for part in rest.split(20):
                    optimizer.zero_grad()
                    (model(rows[part]) - targets[part]).square().mean().backward()
                    optimizer.step()
                if epoch % 2:
                    with torch.no_grad():
                        model(rows[held])
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace.events if isinstance(e, Probe) and e.probe == "folds"]


def keep(model: nn.Module, _) -> nn.Module:
    """Go on with a model."""
    return model


def make_anew(*_) -> nn.Module:
    """Make another one."""
    return build()


def put_back(model: nn.Module, start) -> nn.Module:
    """Put it back to where it began."""
    model.load_state_dict(start)
    return model


@pytest.mark.parametrize("evaluations", [1, 3])
def test_folds_that_go_on_are_counted(evaluations: int) -> None:
    """All but the first, whether they are evaluated once or after each epoch."""
    (probe,) = cross_validate(keep, evaluations)
    assert (probe.measured, probe.reference, probe.step) == (60, 60, 2)


def learn_from_parts(evaluate, steps: int = 150) -> list[Probe]:
    """Learn from all but one part of some rows, and from all but another one, in many steps."""
    rows, targets, model = torch.randn(600, 8), torch.randn(600, 1), nn.Linear(8, 1)
    parts, optimizer = torch.randperm(600).chunk(4), torch.optim.SGD(model.parameters(), lr=0.05)
    with Recorder("x") as recorder:
        for held in parts:
            rest = torch.cat([part for part in parts if part is not held])
            for _ in range(steps):
                part = rest[torch.randperm(450)[:30]]
                optimizer.zero_grad()
                (model(rows[part]) - targets[part]).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                for part in evaluate(held, rest):
                    model(rows[part])
    assert recorder.trace.conditions.get("faults", ()) == ()
    return [e for e in recorder.trace.events if isinstance(e, Probe) and e.probe == "folds"]


def test_folds_are_known_where_not_all_steps_are_watched() -> None:
    """Eight columns tell a row, and none that is held out is met by chance."""
    (probe,) = learn_from_parts(lambda held, _: held.split(50))
    assert probe.step >= 2


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda held, rest: [*held.split(50), *rest.split(50)],  # what it learns from, too
        lambda _, rest: rest[torch.randperm(450)[:200]].split(50),
    ],
    ids=["all", "learned from"],
)
def test_rows_that_nobody_saw_learned_may_be_so(evaluate) -> None:
    """What is not watched may have been learned from."""
    assert not [probe for probe in learn_from_parts(evaluate) if probe.step >= 2]


class PutBackLater:
    """Learns with one model, and then with another, which is put back to its own beginning."""

    def __init__(self) -> None:
        self.others: list[nn.Module] = []
        self.start: dict[str, torch.Tensor] = {}

    def __call__(self, model: nn.Module, _) -> nn.Module:
        """Return the first model once; from then on the other one, which begins elsewhere."""
        if not self.start:
            self.start = {"": torch.empty(0)}
            return model
        if not self.others:
            torch.manual_seed(2)
            self.others.append(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)))
            self.start = copy.deepcopy(self.others[0].state_dict())
        self.others[0].load_state_dict(self.start)
        return self.others[0]


@pytest.mark.parametrize("evaluations", [1, 3])
@pytest.mark.parametrize("begin", [lambda: make_anew, lambda: put_back, PutBackLater])
def test_folds_that_begin_anew_are_fine(begin, evaluations) -> None:
    """The same weights at the start are not those of the end, however often a fold is evaluated."""
    assert cross_validate(begin(), evaluations) == []
