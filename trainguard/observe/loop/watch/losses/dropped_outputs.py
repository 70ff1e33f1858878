"""Watches for losses of outputs that dropout has struck last."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.autograd_graph import (
    Node,
    constants_of,
    kind_of,
    maker_of,
)
from trainguard.observe.loop.watch.losses.loss_calls import (
    CROSS_ENTROPIES,
    LOGITS,
    LossCalls,
)
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches

_LOOKS = 8  # at each place
# Those that hold a prediction against its target; views of a sample may well be dropped apart.
_COMPARES = {*CROSS_ENTROPIES, LOGITS, "binary_cross_entropy", "mse_loss", "l1_loss"} | {
    *("huber_loss", "smooth_l1_loss")
}
_LEAST = 16  # elements of a mask


@dataclass(slots=True)
class _Looks:
    """How many losses of a place were looked at, and of how many the input was struck last."""

    all: int = 0
    struck: int = 0


class DroppedOutputs(Watcher):
    """
    The Probe events "dropped": losses whose input dropout has made, with nothing in between.

    measured: how many, reference: of how many that were looked at there; label: the function.
    """

    makes = ("Probe:dropped",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[LossCalls, _Looks] = {}

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Look at what has made the input of a loss."""
        looks = self._places.setdefault(tally, _Looks()) if tally.function in _COMPARES else None
        if looks is None or scores.grad_fn is None or looks.all >= _LOOKS:
            return
        looks.all += 1
        self.looked.add("dropped")
        maker = maker_of(scores.grad_fn)
        looks.struck += kind_of(maker) == "NativeDropoutBackward"
        for mask in _masks(maker):
            low, high = mask.aminmax()
            two = ((mask == low) | (mask == high)).all()
            struck = two & (low == 0) & (high > 1)
            self.recorder.reads.ask(self, [struck], partial(self._take, looks))

    def _take(self, looks: _Looks, found: list[torch.Tensor]) -> None:
        """Count a loss whose input was multiplied by the mask of a dropout."""
        looks.struck += bool(found[0])

    def finish(self) -> Iterable[Event]:
        """Return the places where all inputs were struck."""
        for tally, looks in self._places.items():
            if looks.struck:
                rest = {"label": tally.function, "source": tally.source}
                yield make_probe("dropped", looks.struck, looks.all, **rest)


def _masks(node: Node) -> Iterator[torch.Tensor]:
    """Yield what numbers were multiplied by last, that does not learn, one for each of them."""
    live = [before for before, _ in node.next_functions if before is not None]
    for weights in constants_of(node) if len(live) == 1 else ():
        if weights.numel() >= _LEAST and weights.is_floating_point():
            yield weights
