"""What is seen of data sets and their shallow copies: settings in what both have."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from trainguard.observe.loop.recorder import Recorder


class Settings:
    """How far samples are moved."""

    def __init__(self) -> None:
        self.by = 0.5


class Data(Dataset[Any]):
    """Samples that are moved by a setting in a dictionary, or in an object."""

    def __init__(self) -> None:
        self.x, self.y = torch.randn(40, 4), torch.randn(40, 1)
        self.how = {"by": 0.5}
        self.settings = Settings()
        self.served: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many samples there are."""
        return 40

    def __getitem__(self, index: int) -> Any:
        """Return a sample, and count it."""
        self.served["times"] = self.served.get("times", 0) + 1
        by = self.how["by"] + self.settings.by
        return self.x[index] + by * torch.randn(4), self.y[index]


def of_a_dictionary(data: Data) -> Data:
    """Return a copy that is told to leave samples alone."""
    made = copy.copy(data)
    made.how["by"] = 0.0
    return made


def of_an_object(data: Data) -> Data:
    """Return a copy whose object is told so."""
    made = copy.copy(data)
    made.settings.by = 0.0
    return made


def of_its_own(data: Data) -> Data:
    """Return a copy with a dictionary of its own."""
    made = copy.copy(data)
    made.how = {**data.how, "by": 0.0}
    return made


def deep(data: Data) -> Data:
    """Return a copy of everything."""
    made = copy.deepcopy(data)
    made.how["by"] = 0.0
    return made


def untouched(data: Data) -> Data:
    """Return a copy that is served as it is."""
    return copy.copy(data)


def found(
    make: Callable[[Data], Data], *, evaluates: bool = True, part: bool = False
) -> list[tuple[str, ...]]:
    """Train on data, and on a copy or not; return what is seen."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        data = Data()
        other = make(data)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        held: Any = Subset(other, range(20)) if part else other
        for _ in range(2):
            for loader, learns in ((DataLoader(data, 8), True), (DataLoader(held, 8), False)):
                for x, y in loader:
                    with torch.set_grad_enabled(learns or not evaluates):
                        loss = (model(x) - y).square().mean()
                    if loss.requires_grad:
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
    probes = [event for event in recorder.trace if getattr(event, "probe", "") == "copied setting"]
    return [tuple(probe.label.split("\n")) for probe in probes]


@pytest.mark.parametrize("part", [False, True], ids=["itself", "a part of it"])
def test_a_setting_of_a_copy_that_is_the_datas_own_is_found(part: bool) -> None:
    """A dictionary, or an object, that the copy has by reference."""
    assert found(of_a_dictionary, part=part) == [("Data.how", "by", "0.5", "0.0")]
    assert found(of_an_object, part=part) == [("Data.settings", "by", "0.5", "0.0")]


@pytest.mark.parametrize("make", [of_its_own, deep, untouched])
def test_copies_with_settings_of_their_own_are_left_alone(make: Callable[[Data], Data]) -> None:
    """What is counted while samples are served is no setting of before."""
    assert found(make) == []


def test_both_may_be_trained_on() -> None:
    """What holds for the one may be meant for the other."""
    assert found(of_a_dictionary, evaluates=False) == []
