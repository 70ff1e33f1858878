"""The events of a recording, which stay bounded in a long run."""

from collections.abc import Callable

from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.observe.loop.deferred import find_waiting, is_on_accelerator
from trainguard.observe.loop.faults import Faults
from trainguard.observe.loop.thinning import Thinned
from trainguard.observe.loop.watch.watcher import Columns


class EventStore:
    """
    What is kept of a recording so far, and what is on its way from an accelerator.

    take: is told of each Step that is complete; a recorder may look at it before it keeps it here.
    """

    def __init__(self, faults: Faults, take: Callable[[Event], None]) -> None:
        self._faults, self._take = faults, take
        self._kept: dict[tuple[type[Event], str], Thinned] = {}
        self._waiting: list[Columns] = []

    def keep(self, event: Event) -> None:
        """Take an event in; each optimizer's steps by themselves."""
        # Thinned together, two optimizers in turns would lose one.
        key = (type(event), event.optimizer if isinstance(event, Step) else "")
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = Thinned(_kind_of_step)
        kept.add(event)

    def keep_step(self, columns: Columns) -> None:
        """Take a step in; one on an accelerator a step later, when it is surely there."""
        self.drain()
        waiting = find_waiting(columns)
        if is_on_accelerator(waiting):
            self._waiting.append(columns)
        else:
            self._take(Step(**self._faults.fetch(columns, waiting)))

    def drain(self) -> None:
        """Make Steps of what was still on its way from an accelerator."""
        waiting, self._waiting = self._waiting, []
        for columns in waiting:
            self._take(Step(**self._faults.fetch(columns)))

    def in_order(self) -> list[Event]:
        """Return the events in the order in which they were seen."""
        kept = [event for events in self._kept.values() for event in events]
        return sorted(kept, key=lambda event: getattr(event, "clock", 0))


def _kind_of_step(event: Event) -> object:
    """Return what makes a step unlike others: the words in it, not its numbers."""
    if not isinstance(event, Step):
        return None
    sound = event.loss - event.loss == 0 and event.norm - event.norm == 0
    return (event.optimizer, sound, event.skipped, event.clip, event.training, event.culprit != "")
