"""What a user reads of an influence that a question has found: whole messages, with its place."""

import re
from importlib import import_module

import pytest
import torch

from tests.torches import ATTENDS_TO_NOTHING
from trainguard.core.catalogue import find_invariants
from trainguard.events.counterfactual import WhatIf
from trainguard.judging.verdict import Config, Verdict
from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.recorder import Recorder
from trainguard.report.text import render
from trainguard.subjects.loop import Loop

# For each invariant, trainings that break it, the questions that it judges, in their order.
FOUND = [
    ("padding_does_not_matter", "mask_upside_down", {"padding edited"}),
    ("documents_do_not_mix", "masks_joined_by_and", {"a document edited"}),
    ("samples_do_not_mix", "batch_taken_for_time", {"a sample edited"}),
    ("samples_do_not_mix", "scores_standardised_by_hand", {"a sample edited"}),
    ("ignored_labels_do_not_matter", "missing_labels_learned", {"ignored labels edited"}),
    (
        "order_of_samples_does_not_matter",
        "places_counted_along_the_batch",
        {"a sample edited", "batch in another order"},
    ),
    (
        "order_of_samples_does_not_matter",
        "risks_sorted_without_their_events",
        {"a sample edited", "batch in another order"},
    ),
]


@pytest.mark.parametrize(("name", "fixture", "questions"), FOUND, ids=[f for _, f, _ in FOUND])
def test_an_influence(name, fixture, questions, monkeypatch, snapshot) -> None:
    """The edit, what it changes, and the module or function and the line where it is seen first."""
    if "mask" in fixture and not ATTENDS_TO_NOTHING:
        pytest.skip("this torch makes nan of a row that may attend to nothing")
    made = asking._questions
    monkeypatch.setattr(asking, "_CREDIT", asking._MOST)
    monkeypatch.setattr(
        asking, "_questions", lambda own: [q for q in made(own) if q.name in questions]
    )
    torch.manual_seed(0)
    module = import_module(f"fixtures.broken.loop.guard_{fixture}")
    with Recorder("train", steps=8) as recorder:
        module.train()
    assert any(isinstance(event, WhatIf) for event in recorder.trace)
    (invariant,) = find_invariants(f"loop.{name}")
    (finding, *_) = invariant.judge(recorder.trace)
    verdict = Verdict(Loop(module.train), invariant, Config(), "broken", (finding,))
    assert re.sub(r"\d+\.\d+(e-\d+)?", "N.N", render(finding, verdict)) == snapshot
