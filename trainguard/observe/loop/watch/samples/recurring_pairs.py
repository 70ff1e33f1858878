"""Pairs of a row and its target that come again, whatever was served and not seen between."""

from dataclasses import dataclass, field

from trainguard.observe.loop.watch.samples.target_epochs import NOISE, Epochs
from trainguard.observe.tools.fingerprint import Hashes

_AGAIN = 256  # rows that came again
_USUAL = 0.3  # of what was seen: the least share that came again, of rows and of targets
_NEARLY = 1.4  # times as many rows as targets, or targets as rows: each row has one of its own


@dataclass(slots=True)
class RecurringPairs:
    """
    The first and the latest target of each row, in a run of which only some steps are seen.

    What an agent learns has targets that never come again, and one of two classes has far fewer
    than rows: where both sides are sets that come again, a row has a target of its own.
    """

    first: dict[int, int] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    targets: set[int] = field(default_factory=set)
    count: int = 0
    again: int = 0  # targets that had been seen before

    def add(self, rows: Hashes, targets: Hashes) -> None:
        """Take in the pairs of a batch."""
        batch = targets.tolist()
        self.again += sum(target in self.targets for target in batch)
        self.count += len(batch)
        self.targets.update(batch)
        for row, target in zip(rows.tolist(), batch, strict=True):
            (self.latest if row in self.first else self.first)[row] = target

    def judge(self) -> tuple[float, float] | None:
        """Return the share of rows that changed their target, and the most allowed, if known."""
        few, many = sorted((len(self.first), len(self.targets)))
        repeated = min(self.count - len(self.first), self.again) >= _USUAL * self.count
        if len(self.latest) < _AGAIN or not repeated or many > _NEARLY * few:
            return None
        changed, chance = Epochs(self.first, self.latest).share()
        return changed, NOISE * chance
