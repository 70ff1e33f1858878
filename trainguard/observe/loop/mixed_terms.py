"""Losses of several terms in evaluations, added up as those of the training are."""

from dataclasses import dataclass

from trainguard.observe.loop.alike_samples import Number

Factors = tuple[float, ...]


@dataclass(slots=True)
class MixedTerms:
    """
    The passes of an evaluation, each of which calls the loss functions of a training in its order.

    factors: of each call in the loss that is learned; place: the next call of a pass. total,
    weighted: the sum of their losses, and of these times their samples, where the largest factor
    counts as one. sound: whether all passes were so.
    """

    factors: Factors
    place: int = 0
    passes: int = 0
    samples: int = 0
    total: Number = 0.0
    weighted: Number = 0.0
    sound: bool = True

    @property
    def largest(self) -> float:
        """The factor that counts as one."""
        return max(self.factors, key=abs)

    def begin(self) -> None:
        """Begin a pass."""
        self.sound = self.sound and self.place in (0, len(self.factors))
        self.passes += self.place > 0
        self.place = 0

    def add(self, value: Number, samples: int) -> None:
        """Add what the next loss function has returned, of so many samples."""
        if self.place >= len(self.factors):
            self.sound = False
            return
        part = self.factors[self.place] / self.largest * value
        self.total, self.weighted = self.total + part, self.weighted + samples * part
        self.samples += samples if self.place == 0 else 0
        self.place += 1
