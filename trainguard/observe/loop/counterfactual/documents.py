"""A document edited: whether what a model says of one depends on others in the same row."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.influence import Kept, keep_places
from trainguard.observe.loop.counterfactual.padding import looks_around
from trainguard.observe.loop.counterfactual.question import (
    Contrast,
    ModuleCall,
    Question,
    is_editable,
)
from trainguard.observe.loop.counterfactual.witness import (
    MOST_GIVEN,
    GivenRows,
    Witness,
    find_changes,
)
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.window import Forward

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_WHOLE = (torch.int64, torch.int32)
_LEAST = 3  # tokens of a document of which one in the middle is edited: its ends may be marks
_HIDDEN = -1e3  # what is added to scores that are to be hidden, at most: the weights are zero then
_ROUNDING = 10  # times that of a loss


@dataclass(frozen=True, slots=True)
class PackedRows:
    """
    Rows of tokens that hold several documents.

    documents: the number of the document of each token in its row. masked: whether an attention
    mask keeps them apart, and not positions alone.
    """

    ids: torch.Tensor
    documents: torch.Tensor
    masked: bool

    def others(self) -> torch.Tensor:
        """Return where other documents than the first are; single tokens may be padding."""
        counts = torch.stack([torch.bincount(numbers)[numbers] for numbers in self.documents])
        long = (self.documents == 0).sum(1, keepdim=True) >= _LEAST
        return (self.documents != 0) & (counts >= _LEAST) & long

    def edits(self) -> list[tuple[int, int]]:
        """Return the middle of the first document of each row that has others."""
        rows = self.others().any(1).nonzero()[:, 0].tolist()
        return [(row, int((self.documents[row] == 0).sum()) // 2) for row in rows]


class DocumentEdited(Question):
    """
    In each row, a token in the middle of the first of several documents becomes another one.

    measured: at how many places of other documents the output changes; reference: how
    many there are; numbers: whether an attention mask keeps documents apart. Void where no output
    has a place for each token.
    """

    name = "a document edited"
    asks = 2
    needs_follow_ups = True

    def __init__(self, edits: bool = True) -> None:
        self.edits, self._edited = edits, Report()

    def fits(self, call: ModuleCall) -> str:
        """Ask where an attention mask has blocks, or positions begin anew within rows."""
        found = find_documents(call)
        if found is None or looks_around(call.module):
            return ""
        return f"a token in the first document of {len(found.edits())} rows"

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Put a token that occurs elsewhere in its place."""
        found = find_documents(call)
        if found is not None and self.edits:
            inside = found.ids[:, 1:-1].clone()
            with torch.no_grad():
                for place in found.edits():
                    found.ids[place] = inside[inside != found.ids[place]][0]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that takes down what has a place for each token."""
        found = find_documents(call)
        if found is None:
            way_out.void("the documents are not there any more")
        return _PlacesWitness(call.recorder, way_out, call.module, found)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Compare once the same is known of the step as it is."""
        self._edited = edited
        return Contrast()

    def follow_ups(self, contrast: Contrast) -> "list[DocumentEdited]":
        """Ask for the step as it is."""
        return [DocumentEdited(edits=False)]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Count the places of other documents at which the output changes."""
        before, after = edited["returned"], self._edited["returned"]
        if before is None or after is None or before.shape != after.shape:
            return Contrast(void="no output has a place for each token")
        others, masked = edited["samples"]
        changes = find_changes(before.scores, after.scores, _ROUNDING * plain["rounding"])
        rows, columns = changes.nonzero()
        changed = np.zeros(others.shape, dtype=bool)
        changed[rows, columns * before.stride // int(np.prod(before.shape[2:]))] = True
        places = np.argwhere(changed & others).tolist()
        first = f"the output for token {places[0]}, of another one," if places else ""
        return Contrast(float(len(places)), float(others.sum()), (float(masked),), smallest=first)

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether the output changes for others."""
        return contrast.measured > 0

    def kept(self, call: ModuleCall) -> Kept:
        """Leave out all but the other documents."""
        found = find_documents(call)
        assert found is not None
        return keep_places(~found.others())

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is for all: many rows were edited at once."""
        return True


class _PlacesWitness(Witness):
    """Reports the first output that has a place for each token."""

    def __init__(
        self, recorder: "Recorder", way_out: Exit, module: nn.Module, found: PackedRows
    ) -> None:
        super().__init__(recorder, way_out, module)
        self._shape = tuple(found.ids.shape)
        self.samples: Any = found.others().numpy(), found.masked

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look for it among all outputs of the module."""
        before = self.output
        super().forward(forward, module, inputs, output)
        if self.output != before:
            outputs = (t for t in tensors_in(output) if tuple(t.shape[:2]) == self._shape)
            shown = next(outputs, None)
            self.returned = GivenRows.of("", shown, None, MOST_GIVEN) if shown is not None else None


def find_documents(call: ModuleCall) -> PackedRows | None:
    """Return rows of tokens that hold several documents, by a mask or by positions that say so."""
    tensors = [tensor.detach() for tensor in call.tensors()]
    tables = [t for t in tensors if t.dim() == 2 and t.dtype in _WHOLE and is_editable(t)]
    for ids in (table for table in tables if _restarts_of(table) is None):
        masks = (_blocks_of(t, *ids.shape) for t in tensors if t.dim() >= 2)
        starts = (_restarts_of(t) for t in tables if t is not ids and t.shape == ids.shape)
        for masked, documents in (*((True, m) for m in masks), *((False, s) for s in starts)):
            packed = PackedRows(ids, documents, masked) if documents is not None else None
            if packed is not None and packed.edits() and len(torch.unique(ids[:, 1:-1])) > 1:
                return packed
    return None


def _restarts_of(table: torch.Tensor) -> torch.Tensor | None:
    """Return the number of each document, where positions count up from zero again and again."""
    begins = table == 0
    steps = table[:, 1:] - table[:, :-1]
    goes_on = (steps == 1) | begins[:, 1:]
    if not (begins[:, 0].all() and goes_on.all() and begins[:, 1:].any()):
        return None
    numbers = begins.cumsum(1) - 1
    counted = (steps == 1).float().mean() > 0.5  # a table of zeros and ones counts nothing
    return numbers if counted and int(table.max()) >= _LEAST - 1 else None


def _blocks_of(mask: torch.Tensor, rows: int, places: int) -> torch.Tensor | None:
    """Return the number of each document, where a mask lets each place see those of its own."""
    if tuple(mask.shape[-2:]) != (places, places) or places < 2 * _LEAST or mask.dim() > 4:
        return None
    tables = mask.reshape(-1, places, places)
    values = torch.unique(mask).float()
    hides = mask.dtype == torch.bool or bool(values.min() <= _HIDDEN and values.max() == 0)
    if (len(tables) % rows and len(tables) != 1) or len(values) != 2 or not hides:
        return None
    tables = tables[:: max(1, len(tables) // rows)].cpu()
    sees = tables == tables.diagonal(dim1=1, dim2=2)[:, :1, None]
    if not sees.diagonal(dim1=1, dim2=2).all():
        return None
    both = sees | sees.mT
    # Documents follow each other: a new one begins where nothing before is seen, or sees it.
    earlier = torch.tril(both, -1).any(2)
    numbers = (~earlier).cumsum(1) - 1
    apart = numbers[:, :, None] != numbers[:, None, :]
    if (both & apart).any() or not (numbers[:, -1] > 0).any():
        return None
    return numbers.expand(rows, places) if len(numbers) in (1, rows) else None
