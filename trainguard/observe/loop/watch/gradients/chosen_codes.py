"""Watches encoders that are held to the codes they choose: what else they learn from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_DISTANCES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
_MOST_NODES = 20000
_MOST_CALLS = 8  # of losses, between two backward passes
_LARGEST = 2**20  # elements of what is compared
_LEAST, _ROWS = 16, 512  # vectors of a batch that are compared with all codes
_FARTHER = 1e-4  # of a distance, which is computed in another order here


@dataclass(slots=True, eq=False)
class _Distance:
    """A loss between what learns, and what does not; node: of the loss in its graph."""

    source: str
    learns: torch.Tensor
    stays: torch.Tensor
    node: Node

    def is_of_chosen_codes(self) -> bool:
        """Say whether what stays are a few vectors over and over: of these, the nearest to each."""
        own, code = self.learns.detach(), self.stays.detach()
        if own.shape != code.shape or own.dim() < 2 or own.numel() > _LARGEST:
            return False
        return any(
            _are_nearest(own.movedim(a, -1), code.movedim(a, -1)) for a in {1, own.dim() - 1}
        )

    def mirrors(self, other: "_Distance") -> bool:
        """Say whether codes are moved here to what chose them there."""
        theirs = other.learns.detach()
        return self.stays.shape == theirs.shape and torch.equal(self.stays.detach(), theirs)

    def parameters(self) -> set[int]:
        """Return what learns, by the identities of its parameters."""
        return set(_leaves_of(autograd_graph.below(self.learns.grad_fn, _MOST_NODES)))


class ChosenCodes(Watcher):
    """
    The Probe event "codes": encoders that learn only to stay with the codes that they choose.

    measured: the losses in which that is all that reaches them; reference: those with codes.
    """

    makes = ("Probe:codes",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._distances: list[_Distance] = []
        self._looks: dict[str, list[bool]] = {}

    def install(self, patches: Any) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """Remember a distance, one side of which learns, until the next backward."""
        if tally.function not in _DISTANCES or self.recorder.age not in _STEPS:
            return
        sides = [t for t in (scores, target) if isinstance(t, torch.Tensor) and t.is_cpu]
        learns = [side for side in sides if side.grad_fn is not None]
        stays = [side for side in sides if not side.requires_grad]
        if len(learns) == len(stays) == 1 and value.grad_fn is not None:
            found = _Distance(tally.source, learns[0], stays[0], value.grad_fn)
            self._distances = [*self._distances[1 - _MOST_CALLS :], found]

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what else in a loss leads to what chooses codes."""
        distances, self._distances = self._distances, []
        if not distances or loss.grad_fn is None:
            return
        chosen = [each for each in distances if each.is_of_chosen_codes()]
        held = {d.node for d in distances for c in chosen if d is c or d.mirrors(c)}
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES, ends=held)) if held else []
        others = set(_leaves_of(node for node in nodes if node not in held))
        if not others or len(nodes) >= _MOST_NODES:
            return
        for each in chosen:
            if each.node in nodes and (own := each.parameters()):
                self.looked.add("codes")
                self._looks.setdefault(each.source, []).append(not own & others)

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        for source, looks in self._looks.items():
            if any(looks):
                yield make_probe("codes", sum(looks), len(looks), source=source)


def _leaves_of(nodes: Iterable[Node]) -> Iterator[int]:
    """Yield the identities of parameters that gradients arrive at."""
    return (id(node.variable) for node in nodes if hasattr(node, "variable"))


def _are_nearest(vectors: torch.Tensor, codes: torch.Tensor) -> bool:
    """Say whether each vector stands beside the nearest of all codes, which are few."""
    width = vectors.shape[-1]
    if width < 2 or vectors.numel() // width < _LEAST:
        return False
    vectors, codes = vectors.reshape(-1, width)[:_ROWS], codes.reshape(-1, width)[:_ROWS]
    few, places = torch.unique(codes, dim=0, return_inverse=True)
    if not 2 <= len(few) <= len(codes) / 2:
        return False
    apart = torch.cdist(vectors.double(), few.double())
    own = apart.gather(1, places[:, None])[:, 0]
    return bool((own <= apart.amin(1) * (1 + _FARTHER)).all())
