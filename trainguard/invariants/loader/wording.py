"""How the judges of loaders read a trace: by split, epoch by epoch, and write places and shares."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from trainguard.core.measure import Measure, integer
from trainguard.events.base import Event, Plain
from trainguard.events.loader import Batch, Epoch, Serving
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import events


@dataclass
class EpochPass:
    """One epoch of a split: its batches, and what the loader told of itself."""

    epoch: Epoch
    batches: list[Batch] = field(default_factory=list)

    @cached_property
    def prints(self) -> list[int]:
        """The fingerprints of the inputs of all samples, in the order in which they were served."""
        return [print_ for batch in self.batches for print_ in batch.prints]

    @cached_property
    def labels(self) -> list[int]:
        """The fingerprints of the labels of all samples; empty where none are known."""
        return [label for batch in self.batches for label in batch.labels]

    @cached_property
    def indices(self) -> list[int]:
        """The indices that the sampler drew; empty unless it is known of each batch."""
        if not all(batch.indices for batch in self.batches):
            return []
        return [index for batch in self.batches for index in batch.indices]

    @property
    def order(self) -> list[int]:
        """The order of an epoch: by indices where they are known, else by fingerprints."""
        return self.indices or self.prints

    @cached_property
    def counts(self) -> Counter[int]:
        """How often each fingerprint was served."""
        return Counter(self.prints)


@dataclass
class Split:
    """All that was scanned of one split in one case."""

    trace: Trace[Event]
    name: str
    passes: list[EpochPass]

    @property
    def first(self) -> EpochPass:
        """The first epoch."""
        return self.passes[0]

    def option(self, name: str) -> Plain:
        """What is promised of the split; what is declared of `val` holds for `val.0` too."""
        own = self.trace.promises.get(f"{name}:{self.name}")
        return own if own is not None else self.trace.promises.get(
            f"{name}:{self.name.split('.')[0]}"
        )  # fmt: skip

    @property
    def trains(self) -> bool:
        """Whether it is trained on, by its name."""
        return self.name.lower().startswith(("train", "fit"))

    @property
    def evaluates(self) -> bool:
        """Whether it is evaluated on, by its name."""
        return self.name.lower().startswith(("val", "test", "eval", "dev", "predict"))


def each_case(trace: Trace[Event]) -> Iterator[list[Split]]:
    """Yield the splits of each case."""
    cases: dict[int, dict[str, dict[int, EpochPass]]] = {}
    for epoch in events(trace, Epoch):
        splits = cases.setdefault(epoch.case, {})
        splits.setdefault(epoch.split, {})[epoch.epoch] = EpochPass(epoch)
    for batch in events(trace, Batch):
        if batch.rank == 0:
            cases[batch.case][batch.split][batch.epoch].batches.append(batch)
    for splits in cases.values():
        yield [Split(trace, name, list(passes.values())) for name, passes in splits.items()]


def each_split(trace: Trace[Event]) -> Iterator[Split]:
    """Yield each split of each case."""
    for splits in each_case(trace):
        yield from splits


def servings(trace: Trace[Event], *quantities: str) -> Iterator[Serving]:
    """Yield what was added up of some quantities."""
    return (s for s in events(trace, Serving) if s.quantity in quantities)


def samples(count: float) -> Measure:
    """Write a number of samples."""
    return Measure("1 sample", 1, "samples") if count == 1 else integer(count, "samples")
