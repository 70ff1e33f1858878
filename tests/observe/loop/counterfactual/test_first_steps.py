"""The deputy of the first steps: when it wakes, and when it ends."""

import copy
import os
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loop.counterfactual.test_forking import children
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.deputy import Deputy
from trainguard.observe.loop.counterfactual.rates import OtherRates
from trainguard.observe.loop.recorder import Recorder

pytestmark = pytest.mark.usefixtures("first_steps")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask nothing else."""
    monkeypatch.setattr(asking, "_questions", lambda _: [])


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[Deputy]:
    """Return those deputies that were woken."""
    deputies: list[Deputy] = []
    wake = Deputy.wake

    def note(self: Deputy) -> None:
        """Take one down."""
        deputies.append(self)
        wake(self)

    monkeypatch.setattr(Deputy, "wake", note)
    return deputies


class Net(nn.Module):
    """A layer that may add something of its own."""

    def __init__(self, add=float) -> None:
        super().__init__()
        self.layer, self.add = nn.Linear(6, 1), add

    def forward(self, batch):
        """Return a number for each row."""
        return self.layer(batch) + self.add()


def train(rate=1e-4, *, steps=70, net=None, after=lambda step: None, by_hand=False):
    """Record a training; return what became of the question, and the trace."""
    torch.manual_seed(0)
    net = net or Net()
    data = torch.randn(steps, 16, 6)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for step, batch in enumerate(data):
            optimizer.zero_grad()
            F.mse_loss(net(batch), batch.sum(1, keepdim=True)).backward()
            if by_hand:
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter -= rate * parameter.grad
            else:
                optimizer.step()
            after(step)
    told = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return [event for event in told if event.question == "other rates"], recorder.trace


def test_what_learns_wakes_nobody(woken) -> None:
    """The run's own steps say all."""
    before = children()
    (event,), trace = train(0.1)
    assert (event.outcome, event.numbers, woken) == ("answered", (), [])
    assert event.measured < event.reference / 2
    assert "faults" not in trace.conditions
    assert children() <= before


def test_what_does_not_learn_wakes_it(woken) -> None:
    """Once as many steps were made as are compared, or the run is over."""
    for steps in (70, 30):
        (event,), trace = train(steps=steps)
        assert (event.outcome, event.numbers[0]) == ("answered", min(60, steps))
        assert "faults" not in trace.conditions
    assert len(woken) == 2


@pytest.mark.parametrize("rate", [1e-4, 0.1])
def test_a_recorded_run_is_the_run_that_it_would_have_been(rate) -> None:
    """Whether or not it is woken."""
    torch.manual_seed(0)
    recorded = Net()
    plain = copy.deepcopy(recorded)
    optimizer = torch.optim.SGD(plain.parameters(), lr=rate)
    torch.manual_seed(0)
    for batch in torch.randn(70, 16, 6):
        optimizer.zero_grad()
        F.mse_loss(plain(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()
    train(rate, net=recorded)
    assert all(map(torch.equal, plain.parameters(), recorded.parameters()))


def test_steps_by_hand_are_not_asked(woken) -> None:
    """They have no rate that could be another one."""
    assert train(by_hand=True)[0] == []
    assert woken == []


def test_a_script_that_waits_for_its_children() -> None:
    """It meets none of ours."""
    before, met = children(), []

    def wait(step) -> None:
        """Wait for any child, of which there is one of the script's own."""
        if step == 40:
            child = os.fork()
            if not child:
                os._exit(0)
            met.append((child, os.wait()[0], children() <= before))

    events, trace = train(after=wait)
    assert events == []
    ((child, waited, none_left),) = met
    assert (waited, none_left) == (child, True)
    assert "faults" not in trace.conditions


def test_a_run_that_is_interrupted(woken) -> None:
    """Nobody waits for it then."""

    def interrupt(step) -> None:
        """Raise what Ctrl-C does."""
        if step == 30:
            raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        train(after=interrupt)
    assert (woken, children() <= before) == ([], True)


def test_a_script_that_fails_in_a_child() -> None:
    """That is no loss without bounds: it is given up."""
    owner = os.getpid()

    def fail(step) -> None:
        """Raise where a child goes on."""
        if step == 20 and os.getpid() != owner:
            raise RuntimeError("no such queue")

    ((event,), trace) = train(after=fail)
    assert (event.outcome, event.reason) == ("given up", "RuntimeError: no such queue")
    assert "faults" not in trace.conditions


def test_steps_without_a_backward(woken) -> None:
    """There is nothing to hold against anything."""
    with Recorder("x") as recorder:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(20):
            net(torch.ones(2, 6))
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    assert woken == []


def test_a_script_with_threads() -> None:
    """It is told why nothing can be asked."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        ((event,), _) = train()
    finally:
        stop.set()
        thread.join()
    assert (event.outcome, event.reason) == ("given up", "the script has 2 threads")


def test_a_model_that_is_another_one_in_a_child() -> None:
    """What it would have learned there says nothing."""
    ((event,), _) = train(net=Net(lambda: os.getpid() % 1000))
    assert event.outcome == "void"
    assert event.reason.startswith("the first step as it is gave ")


def test_steps_that_take_too_long(monkeypatch) -> None:
    """It is told that they were not made again."""
    monkeypatch.setattr(OtherRates, "makes", 10**9)
    ((event,), _) = train()
    assert (event.outcome, event.reason) == ("given up", "60 steps would take too long")


def test_a_question_that_fails_does_no_harm(monkeypatch) -> None:
    """It is told as a fault of ours."""
    monkeypatch.setattr(OtherRates, "compare", lambda *_: 1 / 0)
    _, trace = train()
    (fault,) = trace.conditions["faults"]
    assert fault.startswith("FirstSteps was switched off: ZeroDivisionError")


def test_batches_of_workers() -> None:
    """A child has no worker that would bring it the next batch: it is given up."""
    with Recorder("x") as recorder:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
        for batch, wanted in DataLoader(data, 4, num_workers=1, prefetch_factor=1):
            optimizer.zero_grad()
            F.mse_loss(net(batch), wanted).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    told = [event for event in recorder.trace if isinstance(event, WhatIf)]
    (event,) = [event for event in told if event.question == "other rates"]
    assert event.outcome in ("given up", "void")
