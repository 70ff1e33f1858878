"""Two inputs of one model: the same rows come again on both sides, in other pairs."""

from dataclasses import dataclass, field

from trainguard.observe.loop.watch.samples.recurring_pairs import RecurringPairs
from trainguard.observe.tools.fingerprint import Hashes

_BATCHES = 4  # that come again on the side that stays as it was
# Of the rows seen, a part after which a row comes again early, and how many may: where each epoch
# has each row once, one in 32 does.
_EARLY, _FEW = 4, 0.1


@dataclass(slots=True)
class InputSide:
    """
    The batches of one input.

    again: those that begin with a row which was seen before; kept: those that were so as wholes.
    latest: the step in which each row was seen last; gaps: after how many rows one came again, as
    far as the steps between, which may not be seen, have batches as large.
    """

    latest: dict[int, int] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    batches: set[tuple[int, ...]] = field(default_factory=set)
    again: int = 0
    kept: int = 0

    def add(self, batch: tuple[int, ...], step: int) -> None:
        """Take in the batch of a step."""
        self.again += batch[0] in self.latest
        self.kept += batch in self.batches
        self.batches.add(batch)
        for row in batch:
            if row in self.latest:
                self.gaps.append((step - self.latest[row]) * len(batch))
            self.latest[row] = step

    @property
    def has_epochs(self) -> bool:
        """Whether rows come again only once the others have come."""
        early = sum(_EARLY * gap < len(self.latest) for gap in self.gaps)
        return early <= _FEW * len(self.gaps)


@dataclass(slots=True)
class InputPairs:
    """The rows of the first input of a model, and those of another one beside them."""

    pairs: RecurringPairs = field(default_factory=RecurringPairs)
    sides: tuple[InputSide, InputSide] = field(default_factory=lambda: (InputSide(), InputSide()))

    def add(self, rows: Hashes, partners: Hashes, step: int) -> None:
        """Take in the rows of a step."""
        self.pairs.add(rows, partners)
        for side, batch in zip(self.sides, (rows, partners), strict=True):
            side.add(tuple(batch.tolist()), step)

    def judge(self) -> int | None:
        """Return how many rows come again, most of them with other partners; None if unknown."""
        known = self.pairs.judge() if all(side.has_epochs for side in self.sides) else None
        if known is None:
            return None
        return len(self.pairs.latest) if known[0] > known[1] > 0 else 0

    @property
    def one_stays(self) -> bool:
        """Whether one side comes in the order that it had, batch by batch."""
        return any(_BATCHES <= side.kept == side.again for side in self.sides)
