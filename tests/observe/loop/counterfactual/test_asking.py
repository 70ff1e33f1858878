"""Questions to the steps of a training: when they are asked, and what they leave alone."""

import os
import random
import re
import threading
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainguard.core.settings import Settings
from trainguard.events.counterfactual import WhatIf
from trainguard.judging.judge import judge_run
from trainguard.observe.loop.counterfactual import asking, inquiry
from trainguard.observe.loop.counterfactual.question import Question
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.recorder import Recorder
from trainguard.subjects.loop import Run


class Net(nn.Module):
    """A classifier with dropout, that counts how often it is called."""

    def __init__(self, middle=lambda hidden: hidden) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle, self.calls = middle, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        self.calls += 1
        hidden = F.dropout(torch.tanh(self.first(inputs)), 0.1, self.training)
        return self.last(self.middle(hidden))


def train(*, middle=lambda hidden: hidden, between=lambda loss: loss, epochs=1):
    """Train on 16 batches an epoch; return the losses and the number of calls."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    points = torch.randn(256, 6)
    data = TensorDataset(points, (points[:, 0] > 0).long() + (points[:, 1] > 0).long())
    model, losses = Net(middle), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for inputs, classes in DataLoader(data, 16, shuffle=True):
            optimizer.zero_grad()
            loss = between(F.cross_entropy(model(inputs), classes))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model.calls, random.random(), torch.rand(()).item(), np.random.rand()


def ask(*, probe=True, **options) -> list[WhatIf]:
    """Record a training, and return what it was asked."""
    with Recorder("x", probe=probe) as recorder:
        train(**options)
    return [event for event in recorder.trace if isinstance(event, WhatIf)]


def told(events: list[WhatIf]) -> list[tuple]:
    """Return what was asked when, and what became of it."""
    return [(event.step, event.question, event.outcome) for event in events]


def test_a_healthy_step_is_asked_once() -> None:
    """The step as it is comes first, and one answer settles the others."""
    events = ask()
    assert told(events) == [
        (1, "nothing edited", "answered"),
        (1, "a sample edited", "answered"),
        (1, "batch in another order", "answered"),
        (1, "inputs edited", "answered"),  # by the children of the two before
        (1, "labels exchanged", "answered"),
        (1, "terms unread", "answered"),
        (1, "one batch learned", "void"),  # too small to learn it by heart
        (1, "the same batch again", "answered"),
    ]
    assert events[0].source.partition(":")[0] == __file__
    assert 0 < sum(event.seconds for event in events) < 2.0


def test_the_run_is_the_run_that_it_would_have_been() -> None:
    """Losses, calls of the model and all random streams are the same to the last bit."""
    with Recorder("x") as recorder:
        watched = train()
    assert any(isinstance(event, WhatIf) for event in recorder.trace)
    assert watched == train()


def test_nothing_is_asked_without_probes() -> None:
    """Who wants to watch only, watches only."""
    assert ask(probe=False) == []


def test_nothing_is_believed_where_a_child_differs() -> None:
    """A model that computes something else in another process cannot be asked."""
    owner = os.getpid()
    events = ask(middle=lambda hidden: hidden * (1 + (os.getpid() == owner)))
    assert [(event.question, event.outcome) for event in events] == [("nothing edited", "void")]
    assert "the step as it is gave" in events[0].reason


def test_a_child_that_would_write_is_given_up(tmp_path: Path) -> None:
    """The plain step is tried three times at most; each time it is said why."""
    log = tmp_path / "log"

    def write(loss):
        """Log the loss between forward and backward."""
        with log.open("a") as file:
            file.write(f"{loss.item()}\n")
        return loss

    events = ask(between=write)
    assert {(event.outcome, event.question) for event in events} == {("given up", "nothing edited")}
    assert {event.reason for event in events} == {f"it opens {str(log)!r} for writing"}
    assert len(events) <= 3
    assert len(log.read_text().splitlines()) == 16


def test_a_child_that_fails_is_given_up() -> None:
    """What the user's code raises in a child stays in the child."""
    owner = os.getpid()

    def fail(loss):
        """Raise, in any other process."""
        if os.getpid() != owner:
            raise RuntimeError("not here")
        return loss

    assert {event.reason for event in ask(between=fail)} == {"RuntimeError: not here"}


@pytest.mark.parametrize("ends", [lambda: os._exit(0), lambda: threading.Event().wait()])
def test_a_child_that_does_not_answer_is_given_up(ends, monkeypatch) -> None:
    """A child that ends or hangs costs its time, and no more."""
    monkeypatch.setattr(inquiry, "_LONGEST", 0.2)
    owner = os.getpid()
    events = ask(between=lambda loss: loss if os.getpid() == owner else ends())
    assert {event.outcome for event in events} == {"given up"}
    assert len(events) <= 3


def test_a_script_with_threads_is_not_asked() -> None:
    """One line says so."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        events = ask()
    finally:
        over.set()
        thread.join()
    assert [(event.outcome, event.reason) for event in events] == [
        ("given up", "the script has 2 threads")
    ]


def test_time_that_is_spent_is_spent(monkeypatch) -> None:
    """Questions cost a share of the run's time: where that is used up, they are not asked."""
    monkeypatch.setattr(asking, "_CREDIT", 0.0)
    monkeypatch.setattr(asking, "_SHARE", 0.0)
    assert {event.reason for event in ask()} == {
        "its share of the run's time was spent (--what-if gives more)"
    }


def _below(kind: type) -> list[type]:
    """Return a class and all that derive from it."""
    return [kind, *(each for below in kind.__subclasses__() for each in _below(below))]


HOOKS = [
    (kind, name)
    for kind in dict.fromkeys([*_below(Question), *_below(Witness)])
    for name, method in vars(kind).items()
    if isinstance(method, FunctionType) and name != "__init__"
]


@pytest.mark.parametrize(
    ("kind", "name"), HOOKS, ids=[f"{kind.__name__}.{name}" for kind, name in HOOKS]
)
@pytest.mark.usefixtures("first_steps")
def test_a_question_that_fails_does_no_harm(kind, name, monkeypatch) -> None:
    """Whatever part of whatever question raises, here or in a child: it is told once."""

    def fail(*_args, **_named) -> None:
        """Fail."""
        raise ValueError("on purpose")

    plain = train()
    monkeypatch.setattr(kind, name, fail)
    with Recorder("x") as recorder:
        watched = train()
    assert watched == plain
    told = recorder.trace.conditions.get("faults", ())
    assert len({line.split()[0] for line in told}) == len(told)
    off = r"(Counterfactuals|FirstSteps) was switched off: ValueError"
    assert all(re.match(off, line) for line in told)
    verdicts = judge_run(Run(name="x"), recorder.trace, Settings())
    assert not [v for v in verdicts if v.outcome == "broken"]


def test_a_fault_of_ours_stays_with_us(monkeypatch) -> None:
    """Whatever goes wrong in asking, the training does not know; nothing is asked any more."""
    monkeypatch.setattr(asking.forking, "obstacle", lambda: 1 / 0)
    with Recorder("x") as recorder:
        train()
    # Probes that look in a child fail too, each by itself.
    (told,) = [f for f in recorder.trace.conditions["faults"] if f.startswith("Counterfactuals")]
    assert "was switched off: ZeroDivisionError: division by zero" in told
    assert not [event for event in recorder.trace if isinstance(event, WhatIf)]


def test_a_fault_elsewhere_ends_asking(monkeypatch) -> None:
    """Questions that fail at the end of a step are not asked at the next one."""
    monkeypatch.setattr(asking.Counterfactuals, "after_step", lambda *_: 1 / 0)
    asked = []
    monkeypatch.setattr(asking.Counterfactuals, "_ask", lambda *_: asked.append(1))
    with Recorder("x") as recorder:
        train()
    assert len(asked) == 1
    assert recorder.asks is None
