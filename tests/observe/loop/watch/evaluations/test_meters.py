"""Meters: what adds up over evaluations, and what is said of it."""

import numpy as np
import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.meter_values import added_to, metrics_of, numbers_of, readings
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.owners import parts_of


class Sums:
    """Two numbers."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, values):
        """Add some."""
        self.total += float(values.sum())
        self.count += len(values)

    def mean(self):
        """Return their mean."""
        return self.total / self.count


class Lists(Sums):
    """All numbers."""

    def __init__(self):
        self.values = []

    def add(self, values):
        """Add some."""
        self.values.append(values)

    def mean(self):
        """Return their mean."""
        return float(torch.cat(self.values).mean())


class Pairs(Lists):
    """All numbers, and what they should be."""

    def __init__(self):
        super().__init__()
        self.wanted = []

    def add(self, values):
        """Add some."""
        self.values.append(values.numpy())
        self.wanted.append(torch.arange(len(values)).numpy())

    def mean(self):
        """Return the root of the mean square error."""
        apart = np.concatenate(self.values) - np.concatenate(self.wanted)
        return float((apart**2).mean() ** 0.5)


class Areas(Pairs):
    """All scores, and which are positive."""

    def mean(self):
        """Return the area under the curve."""
        scores, wanted = np.concatenate(self.values), np.concatenate(self.wanted) % 2
        pairs = scores[wanted == 1][:, None] > scores[wanted == 0]
        return float(pairs.mean())

    def add(self, values):
        """Add some."""
        self.values.append(values.numpy())
        self.wanted.append((torch.arange(len(values)) % 2).float().numpy())


def found(make, begins_anew, says) -> list[tuple[float, float]]:
    """Train and evaluate in turns, and return what was found."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net, meter = nn.Linear(3, 1), make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for epoch in range(5):
            for _ in range(2):
                net(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            meter = make() if begins_anew else meter
            with torch.no_grad():
                for _ in range(2):
                    meter.add(net(torch.randn(6, 3))[:, 0].square() + epoch)
            print(says(meter))
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    return [(probe.measured, probe.reference) for probe in probes if probe.probe == "meter"]


@pytest.mark.parametrize("make", [Sums, Lists, Pairs, Areas])
def test_what_is_said(make, capsys) -> None:
    """A mean over earlier evaluations is told of, as it is or in percent, and no other number."""
    assert found(make, False, lambda meter: f"error: {meter.mean():.5f}") == [(48.0, 12.0)]
    assert found(make, False, lambda meter: f"error: {100 * meter.mean():.2f}") == [(48.0, 12.0)]
    assert found(make, True, lambda meter: f"error: {meter.mean():.5f}") == []
    assert found(make, False, lambda meter: f"error: {3.3 * meter.mean():.5f}") == []
    assert found(make, False, lambda _: "nothing") == []


@pytest.mark.parametrize("make", [Sums, Lists, Pairs, Areas])
@pytest.mark.parametrize("between", [False, True], ids=["once", "between too"])
@pytest.mark.parametrize("kept", [False, True], ids=["made anew", "one object"])
def test_what_goes_on_from_training(make, between: bool, kept: bool, capsys) -> None:
    """A meter that training has added to, and that is reset when training begins again."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        meter = make()
        for epoch in range(5):
            meter = meter if kept else make()
            meter.__init__()
            for _ in range(2):
                losses = net(torch.randn(8, 3))[:, 0].square()
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                meter.add(losses.detach())
            print(f"train error: {meter.mean():.5f}")
            meter = make() if between else meter
            with torch.no_grad():
                for _ in range(2):
                    meter.add(net(torch.randn(6, 3))[:, 0].square() + epoch)
            print(f"val error: {meter.mean():.5f}")
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "taught meter"]
    told = [] if between else [(28.0, 12.0)]
    assert [(probe.measured, probe.reference) for probe in found] == told


def test_what_is_counted_beside_a_function(capsys) -> None:
    """Counts that are variables, and so far inside of others, are meters too."""
    inside = [Hits(), Hits()]
    with Recorder("x") as recorder:
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        held, right, of = {"more": inside}, 0, 0
        for epoch in range(5):
            for _ in range(2):
                net(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                for _ in range(2):
                    named = net(torch.randn(6, 3)).argmax(1) + (torch.arange(6) > epoch).long()
                    right, of = right + (named == 1).sum(), of + 6
                    held["more"][1].add(named)
            print(f"accuracy: {right / of:.4f}")
            print(f"F1: {inside[1].mean():.4f}")
    probes = (event for event in recorder.trace if isinstance(event, Probe))
    labels = [probe.label for probe in probes if probe.probe == "meter"]
    assert sorted(labels) == ["inside[1]", "right / of"]


def test_what_is_set_anew(capsys) -> None:
    """A result that is larger than the last time is no sum of both."""
    with Recorder("x") as recorder:
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        right = 0
        for epoch in range(5):
            for _ in range(2):
                net(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                right = sum(int((net(torch.randn(6, 3))[:, 0] < 9).sum()) - 5 for _ in range(3))
            right += 2 * epoch
            print(f"accuracy: {right / 18:.4f}")
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "meter"]


class Hits(Sums):
    """How often a class was right, wrong and missed."""

    def __init__(self):
        self.hit, self.wrong, self.missed = torch.zeros(2), np.zeros(2), torch.zeros(2)

    def add(self, values):
        """Count what was named 1 as a hit of the first class, and so on."""
        self.hit += torch.tensor([(values == 1).sum(), (values == 0).sum()])
        self.wrong += np.array([int((values == 2).sum()), 1])
        self.missed[0] += 1

    def mean(self):
        """Return the mean F1."""
        wrong = torch.tensor(self.wrong) + self.missed
        return float((2 * self.hit / (2 * self.hit + wrong)).mean())


def test_numbers() -> None:
    """They are read of whatever has few, and of nothing else."""

    def read(value):
        """Return the numbers of something."""
        return {name: number.tolist() for name, number in numbers_of(parts_of(value)).items()}

    assert read({"a": 1, "b": torch.tensor(2.0), "c": "3", 4: 4}) == {"a": 1.0, "b": 2.0}
    assert read({"a": [1.5, 2], "b": [0, 1]})["of a, b"] == [[1.5, 2.0], [0.0, 1.0]]
    assert "of a, b" not in read({"a": [1.5, 2], "b": [0.5]})
    assert "of a, b" not in read({"a": [1.5, float("nan")], "b": [0, 1]})
    assert not any(name.startswith("of") for name in read({k: [1, 2] for k in "abcde"}))
    assert read({"best": float("inf"), "bad": torch.tensor([float("nan")])}) == {}
    assert read([1, 2.5]) == {"len()": 2.0, "sum()": 3.5}
    assert read([torch.ones(3), torch.zeros(2)]) == {"len()": 5.0, "sum()": 3.0}
    for other in (nn, nn.Linear, nn.Linear(2, 2), [torch.ones(2, 2)], ["a"], 3, None):
        assert read(other) == {}


def test_what_lists_come_to() -> None:
    """Two lists of classes are a table, and its metrics are known."""
    numbers = numbers_of({"named": [0, 1, 1, 2], "true": [0, 1, 2, 2]})
    known = readings(numbers, {"len(true)"}, set(numbers), (4, 2))
    assert known["accuracy of named x true"] == 0.75
    assert known["sum(named) / len(true)"] == known["sum(named) / 4"] == 1.0
    assert known["mean of IoU of named x true"] == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_pairs_of_lists_that_have_grown() -> None:
    """What was there before is still their beginning, and the rest is new."""
    begun, now = ({"of a, b": np.array([row[:n], row[:n]])} for row in [range(9)] for n in (3, 5))
    ((whole, rest),) = added_to(begun, now).values()
    assert (whole.shape, rest.tolist()) == ((2, 5), [[3, 4], [3, 4]])
    assert added_to(now, now) == added_to(now, begun) == added_to({}, now) == {}
    assert added_to({"of a, b": begun["of a, b"] + 1}, now) == {}


def test_metrics_of_pairs_of_lists() -> None:
    """Either list may be that of the targets; one of a single number is none."""
    known = metrics_of({"of a, b": np.array([[0.1, 0.9, 0.4, 0.6], [0, 1, 1, 0]])})
    assert 0.75 in known.values()
    turned = metrics_of({"of a, b": np.array([[0, 1, 1, 0], [0.1, 0.9, 0.4, 0.6]])})
    assert 0.75 in turned.values()
    assert metrics_of({"of a, b": np.ones((2, 4))}) == {}
