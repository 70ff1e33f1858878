"""The events of a recording, which stay bounded: of a long run ever fewer are kept."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf

import torch

from trainguard.events.base import Event
from trainguard.events.loop import Step
from trainguard.observe.loop.deferred import ReadWith, find_waiting, is_on_accelerator
from trainguard.observe.loop.faults import Faults
from trainguard.observe.loop.reads import Reads
from trainguard.observe.loop.watch.watcher import Columns
from trainguard.observe.loop.window import Window

_ALL = 64  # calls of one place that are all looked at
_APART = 4  # calls that each later look stands for, on average
_GOLDEN = 0x9E3779B9  # of 2**32: its multiples come back to no period
FULL = 2048  # events of one kind that are kept before they are thinned out


class Thinned:
    """
    A bounded list of events of one kind.

    All are kept until there are `FULL` of them. Then every other one is dropped and from there on
    only every second is taken, and so on, except that the first 64 always stay, and so does what is
    unlike anything before (its `kind` was not seen yet).
    """

    def __init__(self, kind: Callable[[Event], object] = lambda _: None) -> None:
        self._kind = kind
        self._seen: set[object] = set()
        self._first: list[Event] = []
        self._rest: list[tuple[int, Event]] = []
        self._remarkable: list[tuple[int, Event]] = []
        self._stride = 1
        self.count = 0

    def add(self, event: Event) -> None:
        """Take an event in, or leave it out where the run is long and it is like the others."""
        index, self.count = self.count, self.count + 1
        kind = self._kind(event)
        is_new = kind not in self._seen and len(self._seen) < FULL
        self._seen |= {kind} if is_new else set()
        if index < 64:
            self._first.append(event)
        elif index % self._stride == 0:
            self._rest.append((index, event))
        elif is_new:
            self._remarkable.append((index, event))
        if len(self._rest) > FULL:
            self._stride *= 2
            self._rest = [kept for kept in self._rest if kept[0] % self._stride == 0]

    def __iter__(self) -> Iterator[Event]:
        """Yield the events that were kept in order; a step says how many it stands for."""
        yield from self._first
        merged = sorted(self._rest + self._remarkable, key=lambda kept: kept[0])
        for index, event in merged:
            regular = index % self._stride == 0
            if isinstance(event, Step) and regular and self._stride > 1:
                event = replace(event, span=event.span * self._stride)
            yield event


def distance_of(count: int) -> int:
    """
    Return how many calls a look at the count-th one stands for; 0 where it is not looked at.

    The distances are irregular: a training that does something every so many steps is not met at
    the same instant for ever.
    """
    if count <= _ALL:
        return 1
    return _APART if count * _GOLDEN % 2**32 < 2**32 // _APART else 0


class EventStore:
    """
    What is kept of a recording so far, and what is on its way from an accelerator.

    take: is told of each Step that is complete; a recorder may look at it before it keeps it here.
    reads: what else is wanted from the accelerator, which comes with the columns of a step.
    """

    def __init__(self, faults: Faults, reads: Reads, take: Callable[[Event], None]) -> None:
        self._faults, self._reads, self._take = faults, reads, take
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

    def drain(self, read: ReadWith | None = None) -> None:
        """Make Steps of what was still on its way from an accelerator."""
        waiting, self._waiting = self._waiting, []
        for columns in waiting:
            self._take(Step(**self._faults.fetch(columns, read=read or self._reads.read_with)))

    def read_now(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies of tensors on the host, in one transfer with all that was on its way."""
        here: list[torch.Tensor] = []

        def read(packed: list[torch.Tensor]) -> list[torch.Tensor]:
            """Read what a step waits for, and the tensors with it."""
            both = self._reads.read_with([*packed, *tensors])
            here[:] = both[len(packed) :]
            return both[: len(packed)]

        self.drain(read)
        return here or self._reads.read_with(tensors)

    def in_order(self) -> list[Event]:
        """Return the events in the order in which they were seen."""
        kept = [event for events in self._kept.values() for event in events]
        return sorted(kept, key=lambda event: getattr(event, "clock", 0))


def end_spans(events: list[Event], windows: Iterable[Window]) -> list[Event]:
    """Return events in which the last steps stand for no more than an optimizer has made."""
    made = {window.name: window.index for window in windows}
    return [
        replace(event, span=max(1, made[event.optimizer] - event.step))
        if isinstance(event, Step) and event.step + event.span > made.get(event.optimizer, inf)
        else event
        for event in events
    ]


def _kind_of_step(event: Event) -> object:
    """Return what makes a step unlike others: the words in it, not its numbers."""
    if not isinstance(event, Step):
        return None
    sound = event.loss - event.loss == 0 and event.norm - event.norm == 0
    return (event.optimizer, sound, event.skipped, event.clip, event.training, event.culprit != "")
