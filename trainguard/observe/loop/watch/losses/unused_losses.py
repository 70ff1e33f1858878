"""Watches what becomes of losses that could be learned from, and of which most never are."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.tools.patches import Patches, tell_before
from trainguard.observe.tools.stores import find_store, is_read, reads_ever
from trainguard.observe.tools.user_line import place_of

_LOOKS = 24  # passes backward, and calls of a line, that are looked at
_FEWEST = 4  # losses between two passes backward
_LINES, _MOST = 16, 64  # places, and losses of each between two passes
_MARK = "trainguard: call of a loss function"


class _LostCall:
    """A call of a loss function; it lives as long as what it returned, or what is made of that."""


@dataclass(slots=True, eq=False)
class _LossPlace:
    """
    The calls of one place.

    since: those since the last pass backward, and of each the sum of its targets. looks: passes
    backward that had any before them; alone: those before which all but the last one came to
    nothing, and losses: how many these were.
    """

    source: str
    since: list[tuple[weakref.ref[_LostCall], torch.Tensor]] = field(default_factory=list)
    looks: int = 0
    alone: int = 0
    losses: int = 0


class UnusedLosses(Watcher):
    """
    The Probe events "lost loss" and "last loss".

    "lost loss": a loss with a graph in a variable (label) that nothing reads; measured: so many
    calls of that line, reference: 1 where another value takes its place, that is read.

    "last loss": passes backward, of the losses before which all but the last came to nothing.
    measured: how many, reference: of how many; step: of how many losses in all.
    """

    makes = ("Probe:lost loss", "Probe:last loss")
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[LossCalls, _LossPlace] = {}
        self._unread: dict[tuple[str, str, bool], int] = {}
        self._seen: dict[LossCalls, int] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions, and of gradients that are asked for."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        patches.replace(torch.autograd, "grad", tell_before(self._forget))

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Remember a loss that could be learned from, and look where it goes."""
        seen = self._seen.get(tally, 0)
        node: Node = value.grad_fn
        if node is None or (not seen and len(self._seen) >= _LINES):
            return
        self._seen[tally] = seen + 1
        if seen < _LOOKS:
            self._look()
        place = self._places.setdefault(tally, _LossPlace(tally.source))
        if place.looks < _LOOKS and len(place.since) < _MOST and isinstance(target, torch.Tensor):
            call = node.metadata[_MARK] = _LostCall()
            place.since.append((weakref.ref(call), target.detach().float().sum()))

    def _look(self) -> None:
        """See whether anything can read the variable that a loss goes into."""
        frame, name = find_store()
        if frame is not None and not is_read(frame.f_code, name, frame.f_lasti):
            key = place_of(frame), name, reads_ever(frame.f_code, name)
            self._unread[key] = self._unread.get(key, 0) + 1

    @shielded
    def _forget(self, *_: Any, **__: Any) -> None:
        """Know nothing of losses whose gradients are asked for by themselves."""
        for place in self._places.values():
            place.since.clear()

    def before_backward(self, loss: torch.Tensor) -> None:
        """See which losses since the last pass came to nothing."""
        for place in self._places.values():
            if place.since and place.looks < _LOOKS:
                place.looks += 1
                alive = [call() is not None for call, _ in place.since]
                if len(alive) >= _FEWEST and alive == [False] * (len(alive) - 1) + [True]:
                    self._count(place)
            place.since.clear()

    def _count(self, place: _LossPlace) -> None:
        """Count a pass backward, where its losses were of different targets."""
        sums = torch.stack([own for _, own in place.since])
        losses = len(sums)

        def take(numbers: list[torch.Tensor]) -> None:
            """Count it, where no two in a row are alike."""
            if bool((numbers[0] != 0).any()):
                place.alone += 1
                place.losses += losses

        self.recorder.reads.ask(self, [sums.diff()], take)

    def finish(self) -> Iterator[Event]:
        """Return what was lost."""
        for (source, name, replaced), times in self._unread.items():
            yield make_probe("lost loss", times, replaced, source=source, label=name)
        for place in self._places.values():
            if place.alone:
                rest = {"source": place.source, "step": place.losses}
                yield make_probe("last loss", place.alone, place.looks, **rest)
