"""
Which thread trains: what others do is not looked at, or by a recording of their own.

Another thread may write, without Python's lock, the very memory that would be read. No gradient is
therefore read that another thread's backward may write: optimizers belong to one thread.
"""

import sys
import threading
from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from trainguard.observe.tools.heap import living, nothing_lives

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_MOST = 8  # recordings beside the first: each adds a layer to every call of a module
_Ids = set[int]


class TrainingThread:
    """
    The thread whose training is recorded: the first one that goes backward.

    It may be followed by another once it has ended. Until one is known, all are listened to.
    splits: whether a thread that trains beside it is recorded too, by itself; beside: by which.
    uncounted: how many threads are left alone, since there are too many.
    """

    def __init__(self, recorder: "Recorder", whole: "TrainingThread | None" = None) -> None:
        self._recorder = recorder
        self._whole = whole or self
        self._ident: int | None = get_ident() if whole else None
        self._first: int | None = None  # the first that has made something which may be trained
        self._claiming = threading.RLock()
        self._settled = 0
        self._stopped = False
        self.splits = False
        self.uncounted = 0
        self.steps: Any = None  # what is told of steps of optimizers
        self.beside: dict[int, Recorder | None] = {}

    @property
    def is_beside(self) -> bool:
        """Whether the recording is one beside the first."""
        return self._whole is not self

    def claim(self) -> bool:
        """Take this thread for the one that trains, and say whether no other one does."""
        here = get_ident()
        if self._ident == here:
            return self._whole is self or self._settle()
        with self._claiming:
            # The frames of all threads, since the module `threading` does not know all of them.
            if self._ident in sys._current_frames():  # noqa: SLF001 there is no other
                return not _is_pythons(here)
            self._ident = here
        return True

    def is_elsewhere(self) -> bool:
        """Say whether this thread is one beside that which trains, and none of autograd's."""
        ident, here = self._ident, get_ident()
        return ident is not None and ident != here and (self._is_split() or _is_pythons(here))

    def is_apart(self) -> bool:
        """Say whether this thread is recorded, or left alone, by another recording than this."""
        if self._whole is self:
            return get_ident() in self.beside and not self._stopped
        return get_ident() != self._ident

    def hears(self) -> bool:
        """Say whether what this thread does beside its training is part of the recording."""
        return not self._is_split() or not self.is_elsewhere()

    def part(self) -> "Recorder | None":
        """Begin a recording for this thread, where it begins to train beside another."""
        here = get_ident()
        if not self.splits or here == self._ident or here in self.beside:
            return None
        with self._claiming:
            holder = self._ident or self._first
            if holder not in sys._current_frames():  # noqa: SLF001 as above
                # A program of one thread is listened to whatever it does, and so is its next one.
                self._first = here if threading.active_count() > 1 else None
                return None
            if holder == here or not _is_pythons(here) or self._recorder.patches.blind:
                return None
            self._ident = holder
            return self._begin(here)

    def _begin(self, here: int) -> "Recorder | None":
        """Begin a recording for this thread, unless there are many."""
        self.beside[here] = None
        if len(self.beside) > _MOST:
            self.uncounted += 1
            return None
        first = self._recorder
        other = type(first)(first.name, probe=False, promises=first.promises)
        other.thread = TrainingThread(other, self)
        self.beside[here] = other
        with nothing_lives():  # what there is may be of the others
            other.__enter__()
        return other

    def wait(self) -> None:
        """Wait for the threads that train, as Python does at its end; not for daemons."""
        for thread in threading.enumerate():
            trains = thread.ident in self.beside or thread.ident == self._ident
            if trains and not thread.daemon and thread is not threading.current_thread():
                thread.join()

    def end(self) -> None:
        """End the recordings of the other threads."""
        alive = sys._current_frames()  # noqa: SLF001 as above
        for ident, other in self.beside.items():
            if other is not None:
                if ident in alive and ident != get_ident():
                    other.faults.stop_looking("its thread still trained when the script was over")
                other.__exit__(None, None, None)

    def recorders(self) -> "Iterator[Recorder]":
        """Yield the recordings of all threads."""
        yield self._recorder
        yield from (other for other in list(self.beside.values()) if other is not None)

    def _is_split(self) -> bool:
        """Say whether several threads are recorded."""
        return self._whole is not self or bool(self.beside)

    def _settle(self) -> bool:
        """
        Take over the optimizers of what this thread trains, before its gradients are read.

        Return whether it is this thread alone that trains it.
        """
        own = self._recorder
        known = {id(p) for p in own.names.parameters()}
        if len(known) == self._settled:
            return True
        self._settled = len(known)
        with self._whole._claiming:  # noqa: SLF001 one of our own
            for optimizer in living(Optimizer):
                if _held_by(optimizer) & known:
                    own.window_of(optimizer)
            known |= {id(p) for window in own.windows for p in window.parameters}
            others = [other for other in self._whole.recorders() if other is not own]
            if any(_trains(other, known) for other in others):
                return False
            for other in others:
                other.windows = [w for w in other.windows if not _ids(w.parameters) & known]
        return True

    def stop(self) -> None:
        """Look at nothing any more, in whatever thread: what they train is theirs together."""
        whole = self._whole
        for recorder in whole.recorders():
            recorder.faults.stop_looking("several threads train at once")
        if not whole._stopped:  # noqa: SLF001 one of our own
            whole._stopped = True  # noqa: SLF001 as above
            first, *others = whole.recorders()
            first.steps += sum(other.steps for other in others)


def _trains(recorder: "Recorder", known: _Ids) -> bool:
    """Say whether a recording knows some parameters as its own, and may read their gradients."""
    busy = [w for w in recorder.windows if w.index or any(w.received)]
    held = [recorder.names.parameters(), *(window.parameters for window in busy)]
    return any(_ids(parameters) & known for parameters in held)


def _ids(parameters: object) -> _Ids:
    """Return the identities of parameters."""
    return set(map(id, parameters))  # type: ignore[call-overload]


def _held_by(optimizer: Optimizer) -> _Ids:
    """Return the identities of what an optimizer holds."""
    groups = getattr(optimizer, "param_groups", ())
    return {id(parameter) for group in groups for parameter in group["params"]}


def _is_pythons(ident: int) -> bool:
    """Say whether a thread was begun in Python; those of autograd work for the one that trains."""
    dummy = threading._DummyThread  # noqa: SLF001 no public name tells them apart
    return any(t.ident == ident and not isinstance(t, dummy) for t in threading.enumerate())
