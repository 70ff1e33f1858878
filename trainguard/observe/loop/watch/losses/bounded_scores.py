"""Watches scores of classes that are cosines: whether a loss can become small with them."""

from collections.abc import Iterable
from functools import partial
from math import exp, log1p
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.patches import Patches

_LOOKS = 8
_LARGEST = 2**20  # elements of a table
_ONE = 1e-2  # that a norm differs from one at most; 16 bits round by less
_OPERATIONS = 8  # between a table and the parameter that it is made of
_SAME = {*autograd_graph.SAME, "TBackward"}


class BoundedScores(Watcher):
    """
    The Probe event "bounded scores": cross-entropies of cosines of samples and classes.

    measured: the least that such a loss can be, reference: that of a model that knows nothing;
    label: what the cosines are multiplied by; step: of how many classes.
    """

    makes = ("Probe:bounded scores",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks: dict[str, int] = {}
        self._found: dict[str, tuple[float, int]] = {}  # by line: the factor, and how many classes

    def install(self, patches: Patches) -> None:
        """Ask to be told of the calls of loss functions."""
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)

    def _on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: Any, value: torch.Tensor
    ) -> None:
        """See whether the scores of a call are cosines, times a constant."""
        seen = self._looks.get(tally.source, 0)
        fits = tally.function == "cross_entropy" and scores.dim() == 2 and scores.shape[1] > 1
        if not fits or value.grad_fn is None or seen >= _LOOKS:
            return
        self._looks[tally.source] = seen + 1
        found = _product_of(scores)
        norms = _norms(found[0]) if found is not None else None
        if found is None or norms is None:
            self._found.pop(tally.source, None)
            return
        told = tally.source, found[1], int(scores.shape[1])
        self.recorder.reads.ask(self, [norms], partial(self._take, *told))

    def _take(self, source: str, factor: float, classes: int, found: list[torch.Tensor]) -> None:
        """Keep it where all rows of both have a norm of one."""
        if float(found[0]) <= _ONE:
            self.looked.add("bounded scores")
            self._found[source] = factor, classes

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        for source, (factor, classes) in self._found.items():
            least = log1p((classes - 1) * exp(-2 * abs(factor)))
            rest = {"label": f"{factor:g}", "step": classes, "source": source}
            yield make_probe("bounded scores", least, log1p(classes - 1), **rest)


def _product_of(scores: torch.Tensor) -> tuple[Node, float] | None:
    """Return the product that scores are a constant multiple of, and the multiple."""
    for node, factor in autograd_graph.multiples(scores.grad_fn):
        if kind_of(node) == "MmBackward":
            return (node, factor) if isinstance(factor, float) else None
    return None


def _norms(node: Node) -> torch.Tensor | None:
    """Return how far the rows of samples and of classes are from a norm of one; None of others."""
    first, second = saved(node, "self"), saved(node, "mat2")
    of_classes = node.next_functions[1][0]
    if first is None or second is None or of_classes is None or not _is_of_parameter(of_classes):
        return None
    if max(first.numel(), second.numel()) > _LARGEST:
        return None
    rows = torch.cat([first.detach().float().norm(dim=1), second.detach().float().norm(dim=0)])
    return (rows - 1).abs().max()


def _is_of_parameter(node: Node) -> bool:
    """Say whether a table is a parameter whose rows were divided by their norms."""
    for _ in range(_OPERATIONS):
        if hasattr(node, "variable"):
            return True
        live = [before for before, _ in node.next_functions if before is not None]
        if not live or kind_of(node) not in {*_SAME, "DivBackward"}:
            return False
        node = live[0]
    return False
