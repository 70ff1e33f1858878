"""
Which thread trains: what others do is not looked at.

Another thread may write, without Python's lock, the very memory that would be read.
"""

import sys
import threading
from threading import get_ident


class TrainingThread:
    """
    The thread whose training is recorded: the first one that goes backward.

    It may be followed by another once it has ended. Until one is known, all are listened to.
    """

    def __init__(self) -> None:
        self._ident: int | None = None
        self._claiming = threading.Lock()

    def claim(self) -> bool:
        """Take this thread for the one that trains, and say whether no other one does."""
        here = get_ident()
        if self._ident == here:
            return True
        with self._claiming:
            # The frames of all threads, since the module `threading` does not know all of them.
            if self._ident in sys._current_frames():  # noqa: SLF001 there is no other
                return not _is_pythons(here)
            self._ident = here
        return True

    def is_elsewhere(self) -> bool:
        """Say whether this thread is one beside that which trains, and none of autograd's."""
        ident, here = self._ident, get_ident()
        return ident is not None and ident != here and _is_pythons(here)


def _is_pythons(ident: int) -> bool:
    """Say whether a thread was begun in Python; those of autograd work for the one that trains."""
    dummy = threading._DummyThread  # noqa: SLF001 no public name tells them apart
    return any(t.ident == ident and not isinstance(t, dummy) for t in threading.enumerate())
