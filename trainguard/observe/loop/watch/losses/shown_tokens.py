"""Watches losses over tokens of which some are hidden: whether most that are counted are shown."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.loss_calls import CROSS_ENTROPIES, LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
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
    targets: Counter[int] = field(default_factory=Counter)
    beside: set[int] = field(default_factory=set)  # tokens in places that do not count

    @property
    def covered(self) -> tuple[int, int]:
        """Return the token that covers most targets, and no other place, and how many; or none."""
        token, count = max(self.targets.items(), key=lambda item: item[1], default=(-1, 0))
        all_shown = self.shown == self.counted >= _FEWEST and len(self.beside) >= _WORDS
        most = count >= _BLANK * self.counted and len(self.targets) > 1
        return (token, count) if all_shown and most and token not in self.beside else (-1, 0)

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

    And the Probe event "covered": targets that are that token themselves, since they were taken
    after it was put there: all stand in their own places, and most are one that is nowhere else.
    """

    makes = ("Probe:shown", "Probe:covered")
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
            self.looked |= {"covered"} if place.counted and place.beside else set()
            token, count = place.covered
            if count:
                label, calls = f"token {token}", place.calls
                rest = {"step": calls, "label": label, "source": source}
                yield make_probe("covered", count, place.counted, **rest)
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
        tokens = _read_tokens(given, scores, target) if place.calls < _CALLS else None
        if tokens is not None:
            target = target.reshape(-1)
            counted = target != tally.ignored
            shown = counted & (tokens == target)
            place.targets.update(target[counted].tolist())
            place.beside.update(_find_beside(given, tokens, counted))
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
    fits = 0 < target.numel() <= given.numel() and _FEWEST <= given.numel() <= _LARGEST
    return whole and fits


def _read_tokens(
    given: torch.Tensor, scores: torch.Tensor, target: torch.Tensor
) -> torch.Tensor | None:
    """Return the token in the place of each target, of all or of those that were picked."""
    if target.numel() == given.numel():
        return given.reshape(-1)
    node = scores.grad_fn
    picks = node is not None and autograd_graph.kind_of(node) == "IndexBackward"
    kept = (autograd_graph.saved(node, "indices") or ()) if picks else ()
    picked = [each for each in kept if each is not None]
    masks = [each.nonzero(as_tuple=True) for each in picked if _is_mask(each)]
    indices = [*masks[0]] if len(masks) == len(picked) == 1 else picked
    table = given if len(indices) == given.dim() else given.reshape(-1)
    fits = all(each.is_cpu and each.numel() == target.numel() for each in indices)
    if len(indices) != table.dim() or not fits:  # those on an accelerator would be waited for
        return None
    inside = all(bool((each < size).all()) for each, size in zip(indices, table.shape, strict=True))
    return table[tuple(each.reshape(-1) for each in indices)] if inside else None


def _is_mask(index: torch.Tensor) -> bool:
    """Say whether an index on the CPU says of each place whether it is picked."""
    return index.is_cpu and index.dtype is torch.bool


def _find_beside(given: torch.Tensor, tokens: torch.Tensor, counted: torch.Tensor) -> list[int]:
    """Return the tokens that come more often than in the places that count."""
    every, counts = torch.unique(given, return_counts=True)
    times = Counter(tokens[counted].tolist())
    pairs = zip(every.tolist(), counts.tolist(), strict=True)
    return [token for token, count in pairs if count > times[token]]
