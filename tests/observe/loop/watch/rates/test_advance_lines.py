"""Schedulers that more than one line advances."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.rates.rates import Rates


def train(advance, *, epochs=4, steps=6, kind=None):
    """Make steps, and advance a scheduler as is said; return what was seen."""
    layer = nn.Linear(2, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        make = kind or (lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99))
        scheduler = make(optimizer)
        for epoch in range(epochs):
            for step in range(steps):
                optimizer.zero_grad()
                layer(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                advance(scheduler, epoch, step, step == steps - 1)
        watcher = recorder.watcher(Rates)
    assert "faults" not in recorder.trace.conditions
    judged = "advanced twice" in watcher.looked
    seen = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "advanced twice"]
    return [(probe.measured, probe.reference) for probe in seen], judged


def both(scheduler, epoch, step, last):
    """Advance it after each step, and at the end of each epoch again."""
    scheduler.step()
    if last:
        scheduler.step()


def once(scheduler, epoch, step, last):
    """Advance it after each epoch at first, and then after each step."""
    if last:
        scheduler.step()
    if epoch and not last:
        scheduler.step()


def then_epochs(scheduler, epoch, step, last):
    """Advance it after each step of a warmup, and after each epoch from then on."""
    if epoch < 2:
        scheduler.step()
    if last and epoch >= 2:
        scheduler.step()


def at_the_end(scheduler, epoch, step, last):
    """Advance it once more at the end of all."""
    scheduler.step()
    if last and epoch == 3:
        scheduler.step()


def by_turns(scheduler, epoch, step, last):
    """Advance it after every other step, and after each epoch too."""
    if step % 2:
        scheduler.step()
    if last:
        scheduler.step()


def by_three(scheduler, epoch, step, last):
    """Advance it in a third place as well."""
    both(scheduler, epoch, step, last)
    if step == 2:
        scheduler.step()


def told(scheduler, epoch, step, last):
    """Say at which epoch it is."""
    scheduler.step(epoch + step / 6)
    if last:
        scheduler.step(epoch + 1)


def test_steps_and_epochs() -> None:
    """Four of 24 steps are followed by two advances."""
    assert train(both) == ([(4, 24)], True)
    assert train(both, epochs=200) == ([(146, 878)], True)


@pytest.mark.parametrize("advance", [once, then_epochs, at_the_end, by_turns, by_three])
def test_lines_of_other_steps(advance) -> None:
    """Lines that take turns, a single one more, and more than can be told."""
    assert train(advance) == ([], True)


def test_a_scheduler_that_is_told_where_it_is() -> None:
    """It may be told so twice, and is not judged."""
    kind = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
    assert train(told, kind=lambda optimizer: kind(optimizer, 8)) == ([], False)
