"""Attributes that are replaced for a while."""

from types import SimpleNamespace

import pytest

from trainguard.observe.tools.patches import Patches


class Base:
    """Has a method that its child inherits."""

    def act(self) -> str:
        """Return a word."""
        return "base"


class Child(Base):
    """Inherits the method."""


def louder(original):
    """Return a method that shouts what the original returns."""

    def act(self) -> str:
        """Return the word in capitals."""
        return original(self).upper()

    return act


@pytest.mark.parametrize("owner", [Base, Child])
def test_what_is_replaced_is_put_back(owner: type) -> None:
    """An attribute that was inherited is removed again, one that was there is restored."""
    before = dict(vars(owner))
    patches = Patches()
    patches.replace(owner, "act", louder)
    assert owner().act() == "BASE"
    patches.undo()
    assert owner().act() == "base"
    assert dict(vars(owner)) == before


def test_the_same_attribute_may_be_replaced_twice() -> None:
    """The latest is undone first."""
    owner = SimpleNamespace(word="a")
    patches = Patches()
    for letter in "bc":
        patches.replace(owner, "word", lambda original, letter=letter: original + letter)
    assert owner.word == "abc"
    patches.undo()
    assert owner.word == "a"


def test_a_replacement_of_somebody_else_is_left() -> None:
    """What the user put in place during the recording is still there after it."""
    owner = SimpleNamespace(word="a")
    patches = Patches()
    patches.replace(owner, "word", lambda original: original + "b")
    owner.word = "theirs"
    patches.undo()
    assert owner.word == "theirs"


def test_what_is_not_there_is_not_replaced() -> None:
    """A function that this torch does not have is left out."""
    patches = Patches()
    patches.replace(SimpleNamespace(), "absent", lambda original: original)
    patches.undo()


def test_removals_happen_once() -> None:
    """Hooks are removed at the first undo."""
    removed: list[int] = []
    patches = Patches()
    patches.on_undo(lambda: removed.append(1))
    patches.undo()
    patches.undo()
    assert removed == [1]
