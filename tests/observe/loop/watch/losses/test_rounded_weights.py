"""Weights of a term of the loss that are rounded to zero."""

import math

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

EPOCHS, STEPS = 6, 8


def start():
    """Return a model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer, beta) -> None:
    """Make a step with two terms."""
    out = model(torch.randn(8, 3))
    loss = out.square().mean() + beta * (out - 1).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def by_division(model, optimizer) -> None:
    """Round down what is always below one."""
    for epoch in range(EPOCHS):
        beta = min(1.0, 2 * (epoch // EPOCHS))
        for _ in range(STEPS):
            step(model, optimizer, beta)


def by_function(model, optimizer) -> None:
    """Cut a fraction off."""
    for epoch in range(EPOCHS):
        beta = int(epoch / EPOCHS)
        for _ in range(STEPS):
            step(model, optimizer, beta)


def by_stages(model, optimizer) -> None:
    """Go up in stages, of which this run has none."""
    for epoch in range(EPOCHS):
        beta = 0.1 * math.floor(epoch / 10)
        for _ in range(STEPS):
            step(model, optimizer, beta)


def in_stages(model, optimizer) -> None:
    """Go up in stages, late."""
    for epoch in range(EPOCHS):
        beta = 0.1 * (epoch // 5)
        for _ in range(STEPS):
            step(model, optimizer, beta)


def constant(model, optimizer) -> None:
    """Leave a term out on purpose; another number is rounded."""
    beta = 0.0
    for epoch in range(EPOCHS):
        half = epoch // 2
        for _ in range(STEPS + half):
            step(model, optimizer, beta)


def beside(model, optimizer) -> None:
    """Round a number that weighs nothing."""
    for epoch in range(EPOCHS):
        stage = epoch // EPOCHS
        for _ in range(STEPS):
            step(model, optimizer, 0.5)
        assert not stage


def late(model, optimizer) -> None:
    """Leave a term out on purpose, beside a number that comes to zero at last."""
    for epoch in range(EPOCHS):
        left = (EPOCHS - epoch) // 3
        for _ in range(STEPS):
            step(model, optimizer, 0.0)
        assert left < EPOCHS


def divided(model, optimizer) -> None:
    """Begin at zero, and divide."""
    for epoch in range(EPOCHS):
        beta = epoch / EPOCHS
        for _ in range(STEPS):
            step(model, optimizer, beta)


def found(train) -> tuple[list[Probe], bool]:
    """Record a training, and return what was found and whether it was looked at."""
    model, optimizer = start()
    with Recorder("x") as recorder:
        train(model, optimizer)
    assert "faults" not in recorder.trace.conditions
    every = [e for e in recorder.trace if isinstance(e, Probe)]
    probes = [e for e in every if e.probe.startswith("rounded weight")]
    return probes, "rounded weight" in recorder.trace.conditions["looked"]


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (by_division, "beta = min(1.0, 2 * (epoch // EPOCHS))"),
        (by_function, "beta = int(epoch / EPOCHS)"),
    ],
)
def test_what_is_below_one_for_sure_is_told(train, text: str) -> None:
    """With the statement and its line, and how far it was seen."""
    (probe,), _ = found(train)
    assert (probe.probe, probe.label) == ("rounded weight", text)
    assert probe.measured == probe.reference >= 10
    assert probe.step > 0.85 * EPOCHS * STEPS
    line = train.__code__.co_firstlineno + 3
    assert probe.source == f"{__file__}:{line}"


def test_a_longer_run_may_come_to_one() -> None:
    """What is divided by anything else than the length of the loop."""
    (probe,), _ = found(by_stages)
    assert probe.probe == "rounded weight, perhaps"


@pytest.mark.parametrize("train", [in_stages, constant, beside, late, divided])
def test_weights_that_are_meant(train) -> None:
    """Those that rise at some time, and those that are a constant."""
    assert found(train) == ([], True)


def test_a_loss_of_one_term_has_nothing_to_judge() -> None:
    """It is weighed by no number."""
    model, optimizer = start()
    with Recorder("x") as recorder:
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
    assert "rounded weight" not in recorder.trace.conditions["looked"]
