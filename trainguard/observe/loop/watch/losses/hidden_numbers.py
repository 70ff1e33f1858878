"""Watches numbers that are hidden from a model: whether a loss counts these, or the others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.gradients.autograd_graph import Node
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.tools.fingerprint import hash_rows
from trainguard.observe.tools.owners import named_tensors
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}  # that are looked at
_MOST_NODES = 4000
_FEWEST, _LARGEST = 64, 2**20  # numbers of a batch
_FEW = 8  # masks, tables and variables that are compared
_LEAST, _MOST = 0.02, 0.98  # of the numbers are hidden
_OTHERS = 0.02  # of the numbers may be blank by themselves, or be shown as they are by chance
_ROWS = 4096  # that are known again
_GIVEN = {"AddmmBackward": "mat1", "MmBackward": "self", "ConvolutionBackward": "input"}

Mask = tuple[Node, torch.Tensor]  # what multiplies by it or picks by it, and where it is not zero


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A variable, where it is shown as it is, and whether a loss counts these places."""

    known: torch.Tensor
    shown: torch.Tensor
    shown_counts: bool


class HiddenNumbers(Watcher):
    """
    The Probe event "shown numbers": losses that count what a model is shown, and nothing else.

    A layer is given a variable of the script that is blank in some places, and all that is learned
    goes through a constant that is zero in exactly those, and one elsewhere. measured: how many
    losses; reference: those that count either what is shown or what is hidden; step: rows that came
    again, and have others of their numbers hidden then: what was never known is so for good.
    """

    makes = ("Probe:shown numbers",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._shown = self._looks = self._redrawn = 0
        self._rows: dict[int, int] = {}  # where a row was shown
        self._source = ""

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Hold the masks of a loss against what its first layers are given."""
        if self.recorder.age not in _STEPS or loss.grad_fn is None or not loss.is_cpu:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        masks = [mask for node in nodes for mask in _masks(node)][:_FEW]
        if len(nodes) >= _MOST_NODES or not masks:
            return
        given = [table for node in nodes if (table := _take_given(node)) is not None][:_FEW]
        hidden = _find_hidden(masks, given) if given else None
        if hidden is not None:
            self.looked.add("shown numbers")
            self._looks += 1
            around = _goes_around(loss.grad_fn, {node for node, _ in masks})
            self._shown += hidden.shown_counts and not around
            self._source = self._source or caller()
            self._compare_rows(hidden)

    def finish(self) -> Iterable[Event]:
        """Return how many losses were so."""
        if self._shown:
            redrawn = {"step": self._redrawn, "source": self._source}
            yield make_probe("shown numbers", self._shown, self._looks, **redrawn)

    def _compare_rows(self, hidden: _Hidden) -> None:
        """See which rows came before, with others of their numbers hidden."""
        pairs = zip(hash_rows(hidden.known), hash_rows(hidden.shown.double()), strict=True)
        for row, shown in pairs:
            self._redrawn += self._rows.get(row, shown) != shown
            if len(self._rows) < _ROWS:
                self._rows[row] = shown


def _find_hidden(masks: list[Mask], given: list[torch.Tensor]) -> _Hidden | None:
    """Return what is hidden of a variable, where a mask is of these places or of the others."""
    for known in _find_known(masks[0][1]):
        for table in (part for each in given for part in _parts(each, known)):
            shown = table == known
            if not _LEAST <= 1 - float(shown.double().mean()) <= _MOST or _values(table, shown) > 1:
                continue
            ways = {_compare(mask, shown) for _, mask in masks} - {None}
            if ways:
                return _Hidden(known, shown, ways == {True})
    return None


def _compare(mask: torch.Tensor, shown: torch.Tensor) -> bool | None:
    """Say whether a mask is where numbers are shown, and not where they are hidden; or neither."""
    if mask.dim() != shown.dim() or any(
        m not in (1, s) for m, s in zip(mask.shape, shown.shape, strict=True)
    ):
        return None
    alike = float((mask.expand_as(shown) == shown).double().mean())
    return None if _OTHERS < alike < 1 - _OTHERS else alike >= 1 - _OTHERS


def _find_known(mask: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield what the script has in variables, of as many rows as a mask."""
    found = 0
    for _, _, tensor in named_tensors():
        plain = tensor.is_floating_point() and tensor.is_cpu and not tensor.requires_grad
        alike = plain and tensor.dim() == mask.dim() and len(tensor) == len(mask)
        if alike and _FEWEST <= tensor.numel() <= _LARGEST and found < _FEW:
            found += 1
            yield tensor.detach()


def _parts(given: torch.Tensor, known: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the parts of what a layer is given that may be a variable, or its rows."""
    if given.numel() == known.numel():
        yield given.reshape(known.shape)
    elif given.dim() == known.dim() and len(given) == len(known):
        width = known.shape[1]
        if given.shape[2:] == known.shape[2:] and given.shape[1] > width:
            yield given[:, :width]
            yield given[:, -width:]


def _values(table: torch.Tensor, shown: torch.Tensor) -> int:
    """Return how many different numbers stand where something is hidden."""
    return len(torch.unique(table[~shown]))


def _take_given(node: Node) -> torch.Tensor | None:
    """Return what a layer is given that no other has made."""
    given = autograd_graph.given_to(node, _GIVEN)
    able = given is not None and given.is_cpu and _FEWEST <= given.numel() <= _LARGEST
    return given.detach() if given is not None and able else None


def _masks(node: Node) -> Iterator[Mask]:
    """Yield the masks by which a node multiplies, or picks, what something has learned."""
    if autograd_graph.kind_of(node) == "IndexBackward":
        picked = [each for each in autograd_graph.saved(node, "indices") or () if each is not None]
        sizes = autograd_graph.sizes(node)
        if len(picked) == 1 and picked[0].dtype is torch.bool and picked[0].is_cpu:
            yield node, picked[0].reshape(picked[0].shape + (1,) * (len(sizes) - picked[0].dim()))
        elif len(picked) == len(sizes) > 1 and all(each.is_cpu for each in picked):
            if torch.Size(sizes).numel() > _LARGEST:  # as scores of the words of a language
                return
            mask = torch.zeros(sizes, dtype=torch.bool)
            mask[tuple(picked)] = True
            yield node, mask
        return
    for kept in autograd_graph.constants_of(node):
        small = kept.is_cpu and _FEWEST <= kept.numel() <= _LARGEST
        if small and autograd_graph.is_mask(kept):
            yield node, kept.detach() != 0


def _goes_around(root: Node, through: set[Node]) -> bool:
    """Say whether something is learned that goes through no mask."""
    return any(
        hasattr(node, "variable") for node in autograd_graph.below(root, _MOST_NODES, ends=through)
    )
