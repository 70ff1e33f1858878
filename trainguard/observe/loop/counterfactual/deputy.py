"""A deputy: a forked child that asks all questions of a step while the training goes on."""

import io
import os
import pickle
import struct
from collections.abc import Callable
from functools import wraps
from math import inf
from time import sleep
from typing import Any

from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.tools.patches import Patches

_ORDERS = struct.Struct("dd")  # how many seconds are left for it, and whether to wake
_NAP = 0.02  # seconds after which a deputy that sleeps looks whether to wake
_REAL = 5.0  # seconds by the clock that are waited for each of processor time, as for a child
_WAITS = ("wait", "wait3", "wait4", "waitpid", "waitid")
_ANY = {os.P_ALL, os.P_PGID} if hasattr(os, "P_ALL") else set()


class Mailbox:
    """A piece of memory in which a deputy and what it forks leave word; the latest counts."""

    def __init__(self) -> None:
        self.file = os.memfd_create("trainguard")
        os.write(self.file, _ORDERS.pack(inf, 0.0))

    def put(self, **words: Any) -> None:
        """Leave word."""
        os.write(self.file, pickle.dumps(words))

    def read(self) -> Report:
        """Return what was left last under each name; what was cut short is not there."""
        words: Report = {}
        size = os.fstat(self.file).st_size
        left = io.BytesIO(os.pread(self.file, size, _ORDERS.size))
        try:
            while True:
                words |= pickle.load(left)  # noqa: S301 our own child wrote it
        except (EOFError, pickle.UnpicklingError):
            return words

    def hurry(self, seconds: float) -> None:
        """Tell the deputy how many seconds of processor time deputies may take in all."""
        os.pwrite(self.file, _ORDERS.pack(seconds, 1.0), 0)

    def patience(self) -> float:
        """Return how many seconds deputies may take in all, as they were told; inf before that."""
        return float(self._orders()[0])

    def wake(self) -> None:
        """Tell a deputy that sleeps to begin."""
        os.pwrite(self.file, _ORDERS.pack(inf, 1.0), 0)

    def sleep(self) -> None:
        """Return once it is to begin."""
        while not self._orders()[1]:
            sleep(_NAP)

    def _orders(self) -> tuple[Any, ...]:
        """Return what it was told last."""
        return _ORDERS.unpack(os.pread(self.file, _ORDERS.size, 0))


class Deputy:
    """
    The deputy of a training, as the training sees it: there is one at most.

    until: the step up to which it asks. spent: seconds of processor time that it took.
    """

    def __init__(self, pid: int, mailbox: Mailbox, until: int) -> None:
        self._pid, self._mailbox, self.until = pid, mailbox, until
        self._owner = os.getpid()
        self._status: int | None = None
        self._is_cut = False  # whether it was ended for time
        self.spent = 0.0

    @classmethod
    def send(
        cls, seconds: float, become: Callable[[Exit, Mailbox], None], until: int
    ) -> "Deputy | None":
        """Fork one; in it, and in what it forks, return nothing."""
        mailbox = Mailbox()
        pid = forking.detach(seconds, lambda way_out: become(way_out, mailbox), mailbox.file)
        return cls(pid, mailbox, until) if pid is not None else None

    def has_ended(self) -> bool:
        """Say whether it is done."""
        if self._status is None and os.getpid() == self._owner:
            try:
                pid, status, used = os.wait4(self._pid, os.WNOHANG)
            except ChildProcessError:  # the script has asked for any child's end
                pid, status, used = self._pid, 0, None
            if pid:
                self._status = status
                self.spent = used.ru_utime + used.ru_stime if used is not None else 0.0
        return self._status is not None

    def end(self, patience: float = 0.0, wait: float = inf) -> Report:
        """
        End it, after deputies took so much processor time in all; return what it has left.

        wait: seconds by the clock that it is waited for at most.
        """
        if os.getpid() != self._owner:
            return {}
        if not self.has_ended():
            self._mailbox.hurry(patience)
            self._is_cut = True
            wait = min(wait, _REAL * patience + 2 * (patience > 0))
            self._status, self.spent = forking.end(self._pid, wait)
        words = self._mailbox.read()
        os.close(self._mailbox.file)
        return words

    def wake(self) -> None:
        """Let one that sleeps begin."""
        self._mailbox.wake()

    def peek(self) -> Report:
        """Return what it has left so far."""
        return self._mailbox.read()

    def ending(self) -> str:
        """Say how it ended, where it has left nothing."""
        return forking.tell_ending(self._status or 0, cut=self._is_cut)


def give_way(patches: Patches, end: Callable[[], None]) -> None:
    """End a deputy before the script waits for any child of its process: it has its own."""
    for name in _WAITS:
        patches.replace(os, name, lambda wait: _after(wait, end))


def _after(wait: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    """Return a function of `os` that waits, and ends the deputy before where that may be met."""

    @wraps(wait)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        """Wait."""
        if not args or (args[0] in _ANY if wait.__name__ == "waitid" else args[0] <= 0):
            end()
        return wait(*args, **kwargs)

    return wrapper
