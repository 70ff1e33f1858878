"""The targets of rows that come again: whether they changed from one epoch to the next."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

LEAST = 64  # rows of an epoch whose targets are compared
NOISE = 0.75  # of the changes that chance alone would make: more is no noise in the targets
_SAME_NAMES = 0.5  # of the rows, beyond chance, that one renaming of the classes may explain
_TAIL = 10  # an epoch may leave out one row in so many: what is left of a last batch
_MIXED = 8  # rows for each target at least, where renaming is looked for


def are_positions(batches: Collection[Sequence[int]]) -> bool:
    """
    Say whether targets are the same in each batch, but for those that a short one lacks.

    Positions in a batch are so, as contrastive losses have them.
    """
    longest = max(batches, key=len, default=())
    alike = len({tuple(sorted(targets)) for targets in batches}) < 2
    return alike or all(targets == longest[: len(targets)] for targets in batches)


@dataclass(slots=True)
class Epochs:
    """
    The targets of the rows of the first epoch, and of the second.

    An epoch ends where a row comes again. batches: the targets of each batch of the second.
    """

    first: dict[int, int] = field(default_factory=dict)
    second: dict[int, int] = field(default_factory=dict)
    batches: set[tuple[int, ...]] = field(default_factory=set)
    done: bool = False

    def add(self, rows: list[int], targets: list[int]) -> None:
        """Take in the pairs of a batch."""
        if len(set(rows)) < len(rows):
            self.done = True  # what is not unique has perhaps several targets
        begins = self.second or any(row in self.first for row in rows)
        epoch = self.second if begins else self.first
        if begins and any(row in self.second for row in rows):
            self.done = True
        if self.done:
            return
        epoch.update(zip(rows, targets, strict=True))
        if begins:
            self.batches.add(tuple(targets))

    def share(self) -> tuple[float, float]:
        """Return the share of rows that changed their target, and what chance would make of it."""
        both = [row for row in self.second if row in self.first]
        was, now = ([epoch[row] for row in both] for epoch in (self.first, self.second))
        counts = Counter(was)
        chance = 1 - sum((count / len(both)) ** 2 for count in counts.values())
        changed = sum(a != b for a, b in zip(was, now, strict=True)) / len(both)
        return changed, chance

    @property
    def is_shuffled_apart(self) -> bool:
        """Whether both epochs have the same rows and the same targets, and not the same pairs."""
        missing = len(self.first.keys() - self.second.keys())
        extra = len(self.second.keys() - self.first.keys())
        if len(self.first) < LEAST or _TAIL * (missing + extra) > len(self.first):
            return False
        was, now = Counter(self.first.values()), Counter(self.second.values())
        if (now - was).total() > extra or are_positions(self.batches):
            return False
        changed, chance = self.share()
        return changed > NOISE * chance > 0 and not self.is_renamed()

    def is_renamed(self) -> bool:
        """Say whether the classes have other names only, as clusters found anew do."""
        counts = Counter(self.first.values())
        if len(counts) * _MIXED > len(self.first):
            return False
        together: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for row in self.first.keys() & self.second.keys():
            together[self.first[row]][self.second[row]] += 1
        agree = sum(max(own.values()) for own in together.values()) / len(self.second)
        chance = max(counts.values()) / len(self.first)
        return agree > chance + _SAME_NAMES * (1 - chance)
