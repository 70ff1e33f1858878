"""Declared relations: what cannot be meant, and what their functions may return."""

import pytest

import trainguard as tg
from trainguard.core.errors import SubjectError


def keep(batch):
    """Return a batch as it is."""
    return batch


def train():
    """Train nothing."""


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: tg.Relation("", edit=keep, then=max), "has no name. Say in a word what is edited"),
        (lambda: tg.Relation("x", edit=3, then=max), "edit=3) cannot be called. Give a function"),
        (lambda: tg.Relation("x", edit=keep, then=""), "then='') cannot be called"),
        (lambda: tg.Loop(train, relations=[keep]), "Give tg.Relation(...)"),
        (
            lambda: tg.Loop(train, relations=2 * [tg.Relation("x", edit=keep, then=max)]),
            "has 'x' twice. Give each a name of its own.",
        ),
        (
            lambda: tg.Script("a.py", relations=tg.Relation("x", edit=keep, then=max)),
            "a script runs in a process of its own",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant(declare, words) -> None:
    """One sentence says what is wrong, and one the way out."""
    with pytest.raises(tg.DeclarationError) as told:
        declare()
    assert words in str(told.value)


def fail(before, after):
    """Assert what does not hold."""
    assert before == after, "not alike\nat all"


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (lambda before, after: None, ""),
        (lambda before, after: True, ""),
        (lambda before, after: before > after, "then(before, after) is false"),
        (fail, "not alike"),
    ],
)
def test_what_a_relation_says(then, words) -> None:
    """None and what is true hold; an assertion has words of its own."""
    assert tg.Relation("x", edit=keep, then=then).find_breach(1, 2) == words


def test_an_edit_of_inputs() -> None:
    """In place or returned; the inputs themselves stay as they are, and no others come back."""
    inputs = {"x": [1, 2]}
    for edit in (lambda batch: batch["x"].reverse(), lambda batch: {"x": [2, 1]}):
        assert tg.Relation("x", edit=edit, then=max).edit_inputs(inputs) == {"x": [2, 1]}
        assert inputs == {"x": [1, 2]}
    with pytest.raises(SubjectError, match="edits a batch into list"):
        tg.Relation("x", edit=lambda batch: [batch], then=max).edit_inputs(inputs)
