"""Watches losses over tokens of which some are hidden: whether most that are counted are shown."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.tools.patches import Patches

_CALLS = 16  # of a place
_FEWEST, _LARGEST = 64, 2**20  # tokens of a batch
_WORDS = 8  # different ones among the targets, at least
_BLANK = 0.5  # of the hidden tokens have the one that stands for what is hidden


@dataclass(slots=True)
class _ShownAt:
    """The calls of one place: how many of the targets that count are shown, and of how many."""

    calls: int = 0
    shown: int = 0
    counted: int = 0
    hidden: Counter[int] = field(default_factory=Counter)
    words: set[int] = field(default_factory=set)

    @property
    def blank(self) -> int:
        """The token that stands for what is hidden; -1 where there is none, or it is a word."""
        token, count = max(self.hidden.items(), key=lambda item: item[1], default=(-1, 0))
        is_blank = count >= _BLANK * self.hidden.total() and token not in self.words
        return token if is_blank and len(self.words) >= _WORDS else -1


class ShownTokens(Watcher):
    """
    The Probe event "shown": targets that stand in their own places of the input, and are counted.

    Only where other tokens are hidden from the model behind one that is no target.
    """

    makes = ("Probe:shown",)
    relies_on = ("Batches", "LossFunctions")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[str, _ShownAt] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, place in self._places.items():
            if place.blank >= 0:
                self.looked.add("shown")
                yield Probe(
                    probe="shown",
                    measured=float(place.shown),
                    reference=float(place.counted),
                    step=place.calls,
                    label=f"token {place.blank} hides the others",
                    source=source,
                )

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Compare the targets of a loss with the tokens that the model was given."""
        if tally.function not in CROSS_ENTROPIES or value.dim() or not value.requires_grad:
            return  # what has no reduction is perhaps masked later
        ref = self._batches.given
        given = ref() if ref is not None else None
        if given is None or given.is_floating_point():  # most often
            return
        given, target = self._batches.on_host(given), self._batches.on_host(target)
        if not _are_tokens(given, target):
            return
        place = self._places.setdefault(tally.source, _ShownAt())
        if place.calls < _CALLS:
            tokens, target = given.reshape(-1), target.reshape(-1)
            counted = target != tally.ignored
            shown = counted & (tokens == target)
            place.calls += 1
            place.shown += int(shown.sum())
            place.counted += int(counted.sum())
            place.hidden.update(tokens[counted & ~shown].tolist())
            place.words.update(target[counted].unique().tolist())


def _are_tokens(given: torch.Tensor, target: Any) -> bool:
    """Say whether these are rows of whole numbers, and as many targets of the same kind."""
    if not isinstance(target, torch.Tensor) or given.dim() != 2:
        return False
    whole = not any(
        t.is_floating_point() or t.is_complex() or not t.is_cpu for t in (given, target)
    )
    return whole and given.numel() == target.numel() and _FEWEST <= given.numel() <= _LARGEST
