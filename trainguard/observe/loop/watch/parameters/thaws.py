"""Follows parameters that an optimizer has trained, were frozen, and are thawed for another one."""

from dataclasses import dataclass


@dataclass(slots=True)
class Thaw:
    """
    One parameter since it was last thawed.

    received: the gradients that it had got by then. bits: its checksum; None where it has none.
    """

    received: int
    bits: int | None = None


class Thaws:
    """
    The thaws of parameters that were held before, by the key of each, until one holds it again.

    Who freezes and thaws in turns is not followed any further: there an optimizer holds it.
    """

    def __init__(self) -> None:
        self.open: dict[int, Thaw] = {}
        self._frozen: set[int] = set()
        self._over: set[int] = set()

    def is_fresh(self, key: int, *, requires: bool) -> bool:
        """Say whether a parameter is thawed that was frozen when it was last looked at."""
        if not requires:
            self._frozen.add(key)
            self.open.pop(key, None)
            return False
        thawed = key in self._frozen and key not in self._over
        self._frozen.discard(key)
        return thawed

    def close(self, key: int) -> None:
        """See that a stepping optimizer holds a parameter that was thawed."""
        if self.open.pop(key, None) is not None:
            self._over.add(key)
