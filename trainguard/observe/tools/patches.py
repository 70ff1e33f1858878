"""Attributes of torch and of loggers, replaced for as long as a recording lasts."""

import os
import weakref
from collections.abc import Callable
from typing import Any

_MISSING = object()
_EVERY: "weakref.WeakSet[Patches]" = weakref.WeakSet()


class Patches:
    """
    What was replaced, so that it can be put back.

    active: whether to record; a forked child of the process that began it does not.
    watching: whether this step is one of those that are recorded; in a long run not all are.

    Where somebody replaced an attribute again on top of ours, theirs is left in place: our
    replacement underneath looks at `active` and then does nothing but call the original.
    """

    def __init__(self) -> None:
        self.active = False
        self.watching = True
        _EVERY.add(self)
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._removals: list[Callable[[], object]] = []

    @property
    def live(self) -> bool:
        """Whether to record what happens now."""
        return self.active and self.watching

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of an attribute, where the owner has it."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        own = vars(owner).get(name, _MISSING)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, own, replacement))

    def on_undo(self, remove: Callable[[], object]) -> None:
        """Remember something else to be done when all is put back, such as removing a hook."""
        self._removals.append(remove)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        self.active = False
        while self._removals:
            self._removals.pop()()
        while self._replaced:
            owner, name, own, replacement = self._replaced.pop()
            if vars(owner).get(name, _MISSING) is not replacement:
                continue
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _rest_in_child() -> None:
    """Stop recording in a forked child, such as a worker of a DataLoader."""
    for patches in list(_EVERY):
        patches.active = False


if hasattr(os, "register_at_fork"):  # once for all recordings: it cannot be taken back
    os.register_at_fork(after_in_child=_rest_in_child)
