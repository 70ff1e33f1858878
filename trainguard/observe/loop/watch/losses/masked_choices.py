"""Watches the least and greatest entries of masked tables: whether the mask leaves them at all."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, kind_of, saved, signed
from trainguard.observe.loop.watch.watcher import Watcher, now_and_then
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_FEW = 3  # looks: nobody means it by chance
_LEAST_ROWS = 4  # with entries of both kinds
_LARGEST = 2**22  # entries of a table
_CHOICES = {"MaxBackward": "greatest", "MinBackward": "least"}


@dataclass(slots=True)
class _Choice:
    """In how many steps entries were chosen, and in how many of them masked ones alone."""

    source: str
    step: int
    last: int = -1  # the step that was looked at last: its other micro-batches are no more evidence
    looks: int = 0
    masked: int = 0


class MaskedChoices(Watcher):
    """
    The Probe events "choice": what is least or greatest of a masked table is masked in every row.

    measured: in how many looks, reference: of how many; label: "least" or "greatest", and of what.
    """

    makes = ("Probe:choice",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._choices: dict[tuple[str, int], _Choice] = {}  # by label, and which of its tables

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Compare what is chosen of tables below the loss with the masks that they are times."""
        if loss.grad_fn is None or self.recorder.age not in _STEPS:
            return
        tables: Counter[str] = Counter()
        for node in autograd_graph.below(loss.grad_fn, _MOST_NODES):
            mask = _find_mask(node)
            places = None if mask is None else saved(node, "indices")
            if mask is not None and places is not None:  # hooks of the user's may have packed them
                label = _name(node, mask)
                tables[label] += 1
                self._look(node, mask, places, (label, tables[label]))

    def finish(self) -> Iterable[Event]:
        """Return what was masked in every look."""
        for (label, _), choice in self._choices.items():
            if choice.masked == choice.looks >= _FEW:
                yield Probe(
                    probe="choice",
                    measured=float(choice.masked),
                    reference=float(choice.looks),
                    step=choice.step,
                    label=label,
                    source=choice.source,
                )

    def _look(
        self, node: Node, mask: torch.Tensor, places: torch.Tensor, table: tuple[str, int]
    ) -> None:
        """Say whether the chosen entry of each row is one that the mask takes away."""
        axis = signed(node._saved_dim) % mask.dim()  # noqa: SLF001 torch names it so
        places = places if node._saved_keepdim else places.unsqueeze(axis)  # noqa: SLF001
        left = mask.gather(axis, places).bool()
        kept = mask.bool()
        both = kept.any(axis, keepdim=True) & ~kept.all(axis, keepdim=True)
        if int(both.sum()) < _LEAST_ROWS:
            return
        self.looked.add("choice")
        step = self.recorder.steps
        choice = self._choices.setdefault(table, _Choice(caller(), step))
        if choice.last != step:
            choice.last = step
            choice.looks += 1
            choice.masked += not bool((left & both).any())


def _name(node: Node, mask: torch.Tensor) -> str:
    """Return which entries are chosen, and along which axis: "the least entries of (N, M)"."""
    axis = signed(node._saved_dim) % mask.dim()  # noqa: SLF001 torch names it so
    sizes = ", ".join("N" if place != axis else "M" for place in range(mask.dim()))
    return f"the {_CHOICES[kind_of(node)]} entries of ({sizes})"


def _find_mask(node: Node) -> torch.Tensor | None:
    """Return the mask of zeros and ones that a table is times before it is chosen from."""
    if kind_of(node) not in _CHOICES or not hasattr(node, "_saved_dim"):
        return None
    product = node.next_functions[0][0]
    if product is None or kind_of(product) != "MulBackward":
        return None
    live = [place for place, (before, _) in enumerate(product.next_functions) if before]
    if len(live) != 1:
        return None
    with suppress(RuntimeError):  # what was changed since cannot be read
        mask = saved(product, "self" if live[0] else "other")
        shape = autograd_graph.sizes(node)
        if not isinstance(mask, torch.Tensor) or torch.Size(shape).numel() > _LARGEST:
            return None
        mask = mask.detach().expand(shape)
        if mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all()):
            return mask
    return None
