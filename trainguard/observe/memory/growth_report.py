"""What has grown over the steps of a training, and how it is told."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from trainguard.events.trace import Usage
from trainguard.observe.memory import leak_holders
from trainguard.observe.memory.autograd_graphs import Mark
from trainguard.observe.memory.host_memory import LineMemory
from trainguard.observe.memory.live_storages import LiveStorage, Place
from trainguard.observe.memory.steady_growth import Span

KIB = 1024
_ASKED = 4  # places whose keepers are looked for
_PLACES = 8


@dataclass
class Growth:
    """
    What stays alive, step by step.

    span: the steps that were looked at. graphs: what is left of theirs. tensors: what is left of
    them by where it was made. host: the lines that hold ever more, and by how much per step.
    keepers: who keeps the tensors that were made somewhere; "" stands for the graphs.
    """

    span: Span
    graphs: list[Mark] = field(default_factory=list)
    tensors: dict[Place, list[LiveStorage]] = field(default_factory=dict)
    host: dict[str, LineMemory] = field(default_factory=dict)
    keepers: dict[Place | str, str] = field(default_factory=dict)

    def per_step(self, place: Place | None = None) -> float:
        """Return the bytes of tensors that are left of each step, made anywhere or at a place."""
        groups = self.tensors.values() if place is None else [self.tensors[place]]
        kept = sum(one.size for group in groups for one in group)
        return kept / max(1, self.span.steps)

    @property
    def suspicious(self) -> bool:
        """Whether anything grows that is worth a second look."""
        return bool(self.graphs or self.host) or self.per_step() >= KIB

    def ask_keepers(self) -> None:
        """Find out who keeps what; what keeps no more than so many is no growth."""
        if self.graphs:
            keeper = leak_holders.of_graphs(self.graphs)
            self.keepers[""] = keeper.text
            self.graphs = [] if keeper.bounded else self.graphs
        largest = sorted(self.tensors, key=lambda place: -self.per_step(place))
        for place in () if self.graphs else largest[:_ASKED]:
            keeper = leak_holders.of_tensors(self.tensors[place])
            self.keepers[place] = keeper.text
            if keeper.bounded:
                del self.tensors[place]


def growth_events(growth: Growth, steps: int) -> Iterator[Usage]:
    """Yield what has grown: graphs, tensors by where they were made, memory by line."""
    how = f"measured on cpu over {steps} steps"
    so_far = "" if growth.span.settled else " so far"
    tell = partial(Usage, how=how, of=growth.span.steps)
    if growth.graphs:
        yield _graphs(growth, tell)
    else:
        for place in sorted(growth.tensors, key=lambda place: -growth.per_step(place))[:_PLACES]:
            yield tell(
                quantity=f"kept tensors{so_far}",
                place=place[0],
                measured=growth.per_step(place),
                count=len({one.step for one in growth.tensors[place]}),
                detail=growth.keepers.get(place, ""),
                source=place[1],
            )
    for line, held in sorted(growth.host.items(), key=lambda pair: -pair[1].size)[:_PLACES]:
        kind = "data" if 2 * held.data >= held.size else "objects"
        yield tell(quantity=f"kept {kind}{so_far}", measured=float(held.size), source=line)


def _graphs(growth: Growth, tell: Callable[..., Usage]) -> Usage:
    """Tell of graphs that are kept: by what backward was called on where that is kept too."""
    losses = [mark for mark in growth.graphs if not mark.module]
    whole = growth.span.steady({mark.step for mark in losses})
    marks = losses if whole else [mark for mark in growth.graphs if mark.module]
    module, source = Counter((mark.module, mark.source) for mark in marks).most_common(1)[0][0]
    return tell(
        quantity="kept graphs",
        place=module,
        measured=growth.per_step(),
        count=len({mark.step for mark in marks}),
        detail=growth.keepers.get("", ""),
        source=source,
    )
