"""What a long run keeps of its events: all of a short one, ever fewer of a long one."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from trainguard.events.base import Event
from trainguard.events.loop import Step

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
