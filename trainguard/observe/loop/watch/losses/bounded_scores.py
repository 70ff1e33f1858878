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
_COLD = 0.6  # a factor of cosines of two outputs: what is one over a temperature is above one
_MASKS = 4  # between scores and their product
_MASKED = {"MaskedFillBackward", "WhereBackward"}
_SHIFTS = {"AddBackward", "RsubBackward", "SubBackward"}
_SAME = {*autograd_graph.SAME, "TBackward"}


class BoundedScores(Watcher):
    """
    The Probe event "bounded scores": cross-entropies of cosines of samples and classes.

    measured: the least that such a loss can be, reference: that of a model that knows nothing;
    label: what the cosines are multiplied by; step: of how many classes. Where both sides are
    outputs, as in batches of pairs, the label says so, and only what is cold is told.
    """

    makes = ("Probe:bounded scores",)
    relies_on = ("LossFunctions",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._looks: dict[str, int] = {}
        # By line: the factor, how many classes, and whether these are a parameter.
        self._found: dict[str, tuple[float, int, bool]] = {}

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
        node, factor, plain = found
        of_parameter = _is_of_parameter(node.next_functions[1][0])
        if not (plain if of_parameter else abs(factor) <= _COLD):
            self._found.pop(tally.source, None)
            return
        told = tally.source, factor, int(scores.shape[1]), of_parameter
        self.recorder.reads.ask(self, [norms], partial(self._take, *told))

    def _take(
        self,
        source: str,
        factor: float,
        classes: int,
        of_parameter: bool,
        found: list[torch.Tensor],
    ) -> None:
        """Keep it where all rows of both have a norm of one."""
        if float(found[0]) <= _ONE:
            self.looked.add("bounded scores")
            self._found[source] = factor, classes, of_parameter

    def finish(self) -> Iterable[Event]:
        """Return what was seen."""
        for source, (factor, classes, of_parameter) in self._found.items():
            least = log1p((classes - 1) * exp(-2 * abs(factor)))
            label = f"{factor:g}" + ("" if of_parameter else " of outputs")
            rest = {"label": label, "step": classes, "source": source}
            yield make_probe("bounded scores", least, log1p(classes - 1), **rest)


def _product_of(scores: torch.Tensor) -> tuple[Node, float, bool] | None:
    """
    Return the product that scores are a constant multiple of, and the multiple.

    And whether nothing is masked, or added to them, in between.
    """
    node, by, plain = scores.grad_fn, 1.0, True
    for _ in range(_MASKS):
        for each, factor in autograd_graph.multiples(node):
            plain = plain and kind_of(each) not in _SHIFTS
            node, last = each, factor
        if not isinstance(last, float):
            return None
        by *= last
        if kind_of(node) == "MmBackward":
            return node, by, plain
        live = autograd_graph.live_inputs(node)
        if kind_of(node) not in _MASKED or len(live) != 1:
            return None
        node, plain = live[0], False
    return None


def _norms(node: Node) -> torch.Tensor | None:
    """Return how far the rows of samples and of classes are from a norm of one; None of others."""
    first, second = saved(node, "self"), saved(node, "mat2")
    if first is None or second is None or None in (edge[0] for edge in node.next_functions):
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
