"""Declared relations of a training: what they are given, and what becomes of those that fail."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import trainguard as tg
from tests.observe.loop.counterfactual.test_asking import train
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder


def ask(edit, then=lambda before, after: True):
    """Record a training under a relation; return what was asked of it, and what it computed."""
    with Recorder("x", relations=[tg.Relation("own", edit=edit, then=then)]) as recorder:
        computed = train()
    asked = (event for event in recorder.trace if isinstance(event, WhatIf))
    return [event for event in asked if event.question == "relation 'own'"], computed


def test_what_a_relation_is_given() -> None:
    """The batch of the loader, and what the step came to without the edit and with it."""

    def edit(batch):
        """Make all inputs zero."""
        inputs, classes = batch
        assert (inputs.shape, classes.shape) == ((16, 6), (16,))
        return [torch.zeros_like(inputs), classes]

    def then(before, after):
        """Assert what is seen."""
        assert before.output.shape == after.output.shape == (16, 3)
        assert before.loss != after.loss
        assert not before.output.requires_grad
        assert torch.equal(before.output, after.output), "another output"

    events, _ = ask(edit, then)
    assert [(e.step, e.outcome, e.measured, e.smallest) for e in events] == [
        (1, "answered", 1.0, "another output")
    ]
    assert events[0].label == "the batch"


def draw(batch):
    """Draw random numbers, and return the batch as it is."""
    torch.rand(3), random.random(), np.random.rand()
    return batch


def test_the_run_and_its_noise_stay_as_they_are() -> None:
    """An edit that draws changes no dropout in the child, and nothing in the parent."""
    events, computed = ask(draw, lambda before, after: before.loss == after.loss)
    assert [(e.outcome, e.measured) for e in events] == [("answered", 0.0)] * 3
    assert computed == train()


def compare(before, after):
    """Fail."""
    raise TypeError("no number")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "then", "reason"),
    [
        (lambda batch: 1 / 0, bool, "ZeroDivisionError: division by zero"),
        (lambda batch: Path("x").write_text(""), bool, "it opens 'x' for writing"),
        (lambda batch: batch[:1], bool, "the edit does not return the same tensors in the same"),
        (draw, compare, "then(before, after) raised TypeError: no number"),
        (draw, lambda before, after: exit(), "then(before, after) did not come to an end"),
    ],
)
def test_a_relation_that_fails(edit, then, reason) -> None:
    """It has no answer, and the reason is told; the run goes on."""
    events, computed = ask(edit, then)
    assert {event.outcome for event in events} <= {"void", "given up"}
    assert events[0].reason.startswith(reason)
    assert len(computed[0]) == 16
