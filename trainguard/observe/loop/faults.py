"""
What becomes of a watcher that fails: it is switched off and named once, and the training goes on.

What it would have seen is lost, and so is what others make of that: no judgement is made of it.
"""

from collections.abc import Callable, Iterable
from threading import RLock
from traceback import extract_tb
from typing import Any, TypeVar

from torch import nn

from trainguard.events.base import EVERYTHING, Event, Plain
from trainguard.observe.loop.counterfactual.forking import look_apart
from trainguard.observe.loop.deferred import ReadWith, Waiting, fetch
from trainguard.observe.loop.explanations import find_origins
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.tools.patches import Patches, unseen

T = TypeVar("T")
_MOST = 200  # characters of a message
_PATIENCE = 10.0  # seconds that another thread waits until nothing is looked at any more


class Faults:
    """
    The watchers that are switched off, and the modules that could not be tried out, and why.

    told: a line for each watcher that failed, or column. unprobed: one for each module.
    lost: columns of steps and kinds of events that nobody knows.
    """

    def __init__(self, watchers: Iterable[Watcher], patches: Patches) -> None:
        self.told: list[str] = []
        self.lost: set[str] = set()
        self.unprobed: dict[str, str] = {}
        self._patches = patches
        self._looking = RLock()  # held while the training's own tensors are looked at
        self._watchers = list(watchers)
        self._off: set[int] = set()

    def call(self, watcher: Watcher, method: Callable[..., T], *args: Any) -> T | None:
        """Return what a method of a watcher does; None where it fails, or is switched off."""
        if self._patches.blind or id(watcher) in self._off:
            return None
        try:
            return unseen(method, *args)
        except Exception as error:  # noqa: BLE001 nothing of ours may raise in the user's code
            self.switch_off(watcher, describe(error))
            return None

    def put_back(self, watcher: Watcher, method: Callable[[], object]) -> None:
        """Let a watcher put something back at the end, whether or not it is switched off."""
        try:
            unseen(method)
        except Exception as error:  # noqa: BLE001 what others put back is still to come
            self.switch_off(watcher, describe(error))

    def tell(self, methods: Iterable[Any], *what: Any) -> Columns:
        """Tell watchers what happens, inside of a look, and return what they answer with."""
        columns: Columns = {}
        patches, off = self._patches, self._off
        for method in methods:
            if patches.blind or (off and id(method.__self__) in off):
                continue
            try:
                if answer := method(*what):
                    columns |= answer
            except Exception as error:  # noqa: BLE001 nothing of ours may raise in the user's code
                self.switch_off(method.__self__, describe(error))
        return columns

    def look(self, method: Callable[..., T], *args: Any) -> T | None:
        """Return what a method of the recorder itself does; where it fails, all looking ends."""
        if self._patches.blind:
            return None
        try:
            with self._looking:
                return unseen(method, *args)
        except Exception as error:  # noqa: BLE001 nothing of ours may raise in the user's code
            self.stop_looking(f"the recorder failed: {describe(error)}")
            return None

    def look_apart(
        self, name: str, module: nn.Module, look: Callable[[], T]
    ) -> tuple[T | None, bool]:
        """Return what is seen on copies of a module, and whether it was looked at."""
        seen, why = look_apart(look, module)
        if why:
            self.unprobed.setdefault(name, f"`{name}`: {why}")
        return seen, not why

    def finish(
        self, watcher: Watcher, ask: Callable[[], Iterable[Event]] | None = None
    ) -> list[Event]:
        """Return the events of a watcher, at the end if not asked; one that fails costs its own."""
        if self._patches.blind or id(watcher) in self._off:
            return []
        try:
            return list(unseen(ask or watcher.finish))
        except Exception as error:  # noqa: BLE001 the other watchers have events too
            self.switch_off(watcher, describe(error))
            return []

    def finish_all(self, watchers: Iterable[Watcher]) -> list[Event]:
        """Return the events of all watchers at the end, and the lines that may explain them."""
        found = [event for watcher in watchers for event in self.finish(watcher)]
        return found + (self.look(lambda: [*find_origins(found)]) or [])

    def fetch(
        self, columns: Columns, waiting: Waiting | None = None, read: ReadWith | None = None
    ) -> Columns:
        """Fetch the columns of a step, each by itself where one of them cannot be fetched."""
        try:
            return fetch(columns, waiting, read)
        except Exception:  # noqa: BLE001 it is found out below which one it was
            return {k: v for name, value in columns.items() for k, v in self._fetch(name, value)}

    def switch_off(self, watcher: Watcher, why: str) -> None:
        """Switch a watcher off, and all that rely on it."""
        if id(watcher) in self._off:
            return
        self.told.append(f"{type(watcher).__name__} was switched off: {why}")
        off = [watcher]
        for each in off:
            self._off.add(id(each))
            self.lost.update(each.makes)
            name = type(each).__name__
            off += [w for w in self._watchers if name in w.relies_on and w not in off]

    def stop_looking(self, why: str) -> None:
        """Look at nothing any more, whatever thread does: the rest of the run is only counted."""
        if not self._patches.blind:
            self._patches.blind = True
            self.told.append(f"nothing was looked at any more: {why}")
            self.lost.add(EVERYTHING)
        # Python code ends soon; only a probe in the middle of the user's could keep us waiting.
        if self._looking.acquire(timeout=_PATIENCE):
            self._looking.release()

    def as_conditions(self) -> dict[str, Plain]:
        """Return what failed and what is lost by it, as conditions of a trace."""
        lost = tuple(sorted(self.lost))
        told: dict[str, Plain] = {"faults": tuple(self.told), "lost": lost} if self.told else {}
        return told | ({"unprobed": tuple(self.unprobed.values())} if self.unprobed else {})

    def is_off(self, watcher: Watcher) -> bool:
        """Say whether a watcher is switched off."""
        return id(watcher) in self._off

    def _fetch(self, name: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Return a column with its number; nothing where there is no fetching it."""
        try:
            return fetch({name: value}).items()
        except Exception as error:  # noqa: BLE001 whatever the tensor is
            if name not in self.lost:
                self.told.append(f"the column {name} was given up: {describe(error)}")
            self.lost.add(name)
            return ()


def describe(error: BaseException) -> str:
    """Return what went wrong, and where, in one line."""
    frame = next(iter(extract_tb(error.__traceback__)[-1:]), None)
    place = f", {frame.filename}:{frame.lineno}" if frame is not None else ""
    try:
        said = " ".join(str(error).split())[:_MOST]
    except Exception:  # noqa: BLE001 an exception may fail to say what it is
        said = ""
    return f"{type(error).__name__}: {said}{place}"
