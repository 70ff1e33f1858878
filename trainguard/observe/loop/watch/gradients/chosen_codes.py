"""Watches encoders that are held to the codes they choose: what else they learn from."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, leaves_of, saved
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_DISTANCES = {
    *("MseLossBackward", "L1LossBackward", "SmoothL1LossBackward", "HuberLossBackward"),
}
_MOST_NODES = 20000
_LARGEST = 2**20  # elements of what is compared
_LEAST, _ROWS = 16, 512  # vectors of a batch that are compared with all codes
_SEVERAL = 2  # codes: one alone may be a centre that all are held to
_FARTHER = 1e-4  # of a distance, which is computed in another order here


@dataclass(slots=True, eq=False)
class _Distance:
    """A loss between what learns, and what does not; node: of the loss, leads: to what learns."""

    node: Node
    leads: Node
    learns: torch.Tensor
    stays: torch.Tensor

    def is_of_chosen_codes(self, fewest: int) -> bool:
        """Say whether what stays are a few vectors over and over: of these, the nearest to each."""
        own, code = self.learns, self.stays
        if own.shape != code.shape or own.dim() < 2 or own.numel() > _LARGEST:
            return False
        axes = {1, own.dim() - 1}
        pairs = [(own.movedim(axis, -1), code.movedim(axis, -1)) for axis in axes]
        return any(_are_nearest(*pair, fewest) for pair in pairs)

    def mirrors(self, other: "_Distance") -> bool:
        """Say whether codes are moved here to what chose them there."""
        same = self.stays.shape == other.learns.shape
        return same and torch.equal(self.stays, other.learns)

    def parameters(self) -> set[int]:
        """Return what learns, by the identities of its parameters."""
        return leaves_of(autograd_graph.below(self.leads, _MOST_NODES))


class ChosenCodes(Watcher):
    """
    The Probe event "codes": encoders that learn only to stay with the codes that they choose.

    measured: the losses in which that is all that reaches them; reference: those with codes.
    """

    makes = ("Probe:codes",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks, self._alone = 0, 0
        self._sources = Counter[str]()
        self._choosers: list[set[int]] = []  # parameters of what has chosen among several codes

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what else in a loss leads to what chooses codes."""
        if loss.grad_fn is None or not loss.is_cpu or self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        distances = list(_find_distances(nodes)) if len(nodes) < _MOST_NODES else []
        chosen = [each for each in distances if each.is_of_chosen_codes(self._fewest(each))]
        held = {d.node for d in distances for c in chosen if d is c or d.mirrors(c)}
        if not held:
            return
        rest = autograd_graph.below(loss.grad_fn, _MOST_NODES, ends=held)
        others = leaves_of(node for node in rest if node not in held)
        for each in chosen:
            if others and (own := each.parameters()):
                self.looked.add("codes")
                self._choosers += [own] if own not in self._choosers else []
                self._looks += 1
                self._alone += not own & others
                self._sources[caller()] += not own & others

    def _fewest(self, distance: _Distance) -> int:
        """Return how many codes there must be: they may collapse once several were chosen."""
        has_chosen = bool(self._choosers) and distance.parameters() in self._choosers
        return 1 if has_chosen else _SEVERAL

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        if self._alone:
            source = max(self._sources, key=self._sources.__getitem__)
            yield make_probe("codes", self._alone, self._looks, source=source)


def _find_distances(nodes: Iterable[Node]) -> Iterator[_Distance]:
    """Yield the losses of torch's functions between what learns, and what does not."""
    for node in nodes:
        if kind_of(node) not in _DISTANCES:
            continue
        sides = [before for before, _ in node.next_functions[:2]]
        if len(sides) == 2 and (sides[0] is None) != (sides[1] is None):
            with suppress(RuntimeError):  # what was changed since cannot be read
                both = saved(node, "self"), saved(node, "target")
                learns, stays = both if sides[0] is not None else both[::-1]
                if learns is not None and stays is not None and stays.is_cpu:
                    leads = sides[0] or sides[1]
                    yield _Distance(node, leads, learns.detach(), stays.detach())


def _are_nearest(vectors: torch.Tensor, codes: torch.Tensor, fewest: int) -> bool:
    """Say whether each vector stands beside the nearest of all codes, which are few."""
    width = vectors.shape[-1]
    if width < 2 or vectors.numel() // width < _LEAST:
        return False
    vectors, codes = vectors.reshape(-1, width)[:_ROWS], codes.reshape(-1, width)[:_ROWS]
    few, places = torch.unique(codes, dim=0, return_inverse=True)
    if not fewest <= len(few) <= len(codes) / 2:
        return False
    apart = torch.cdist(vectors.double(), few.double())
    own = apart.gather(1, places[:, None])[:, 0]
    return bool((own <= apart.amin(1) * (1 + _FARTHER)).all())
