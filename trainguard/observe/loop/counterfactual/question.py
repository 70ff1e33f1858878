"""What a question is: an edit, and a contrast between the step with it and the step without."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.window import Window

if TYPE_CHECKING:
    from trainguard.observe.loop.counterfactual.influence import Kept
    from trainguard.observe.loop.recorder import Recorder

MOST_ELEMENTS = 2**24  # of a tensor that is edited
_FEWER = 10  # further questions in which an edit is made smaller


class Contrast(NamedTuple):
    """
    What the two reports of a step say to a question.

    measured, reference, numbers, smallest, enters: as a WhatIf has them. void: why the edit says
    nothing here.
    """

    measured: float = 0.0
    reference: float = 0.0
    numbers: tuple[float, ...] = ()
    void: str = ""
    smallest: str = ""
    enters: str = ""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of an outermost module that is about to be made."""

    recorder: "Recorder"
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among its arguments: those that have sizes, which nested ones lack."""
        given = (*self.args, *self.kwargs.values())
        tensors = (value for value in given if isinstance(value, torch.Tensor))
        return [tensor for tensor in tensors if not tensor.is_nested]


class Question:
    """A question that is asked of a few steps, until it is settled."""

    name = ""
    makes = 1  # steps in its child, at least
    asks = 3  # times that it is answered
    waits = False  # whether it stays open where one of several optimizers has not what it is about
    settled_by: tuple[str, ...] = ()  # questions whose child may tell enough: a fork is saved
    before_learning = False  # whether it may be asked at a call without a graph
    needs_follow_ups = False  # whether an answer means nothing where a follow-up has none
    edits = True  # else the step is made as it is, to be held against

    def fits(self, call: ModuleCall) -> str:
        """Return what would be edited, or nothing where the question means nothing."""
        raise NotImplementedError

    def prepare(self, window: Window) -> None:
        """Look around at the end of the step before one that is asked, which was that of one."""

    def applies(self, plain: Report) -> bool:
        """Say whether the step as it was asked for has what the question is about."""
        return True

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Edit what the step is made with; called in the child."""

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return who reports from the child."""
        return Witness(call.recorder, way_out, call.module)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Hold the report of an edited step against that of the step as it is."""
        raise NotImplementedError

    def follow_ups(self, contrast: Contrast) -> "Iterable[Question]":
        """Return what to ask at once after an answer, until one of the answers refines it."""
        return ()

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Return a contrast that says more after the answer to a follow-up, or nothing."""
        return None

    def conclude(self, contrast: Contrast) -> Contrast:
        """Return what an answer says, once all was asked that it leads to."""
        return contrast

    def is_traced(self, contrast: Contrast) -> bool:
        """Say whether an answer tells of an influence: then it is looked where that enters."""
        return False

    def kept(self, call: ModuleCall) -> "Kept":
        """Return what leaves of a tensor that comes up in the step what the edit may not change."""
        raise NotImplementedError

    def is_settled(self, contrast: Contrast) -> bool:
        """Say whether an answer leaves nothing to be asked again."""
        return False

    def state(self) -> dict[str, Any]:
        """Return what a deputy has to tell the run of it, besides its answers."""
        return {"asks": self.asks}


class Shrinking(Question):
    """
    A question whose edit is made smaller where it breaks its relation.

    places: the numbers of those that are edited, in a follow-up. The fewest that break the relation
    are told. values: the number of what goes to each of them, where that was drawn.
    """

    is_drawn = False  # whether others than this one look for the smallest edit
    count = choices = 0  # places that can be edited, and values that can go there

    def __init__(
        self, places: Sequence[int] | None = None, values: Sequence[int] | None = None
    ) -> None:
        self.places, self.values = places, values
        self._shown, self._breaks = "", False

    def with_edit(self, edit: Mapping[int, int]) -> "Shrinking":
        """Return the same question about an edit that was drawn."""
        return type(self)(list(edit), list(edit.values()))

    def shrink(self, count: int, make: Callable[[Sequence[int]], Question]) -> Iterator[Question]:
        """Yield questions about ever fewer of so many places: the first, or halves that break."""
        places, asked = range(count), 0
        self._shown = ""
        if self.is_drawn:
            return
        parts: list[Sequence[int]] = [places[:1]]
        while parts and asked < _FEWER:
            part, asked, self._breaks = parts.pop(0), asked + 1, False
            yield make(part)
            whole = part if self._breaks else places
            if len(whole) == 1:
                return
            if self._breaks or asked == 1:
                parts = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]

    def shows(self, words: str) -> None:
        """Take down that the relation is broken by fewer places too, in words."""
        self._shown, self._breaks = words, True

    def tell(self, edit: str, plain: Report, edited: Report) -> str:
        """Return what an edit does, in words."""
        losses = f"the loss is {edited['loss']:.6g} instead of {plain['loss']:.6g}"
        return f"with {edit}, {losses}"

    def is_broken(self, contrast: Contrast) -> bool:
        """Say whether an answer breaks the relation."""
        return not contrast.void and contrast.measured > contrast.reference

    def others(self, what: str) -> str:
        """Return how many places are edited besides the first, in words, or nothing."""
        more = len(self.places or ()) - 1
        return f" and the next {more} {what}" if more > 0 else ""

    def pick(self, pool: torch.Tensor) -> torch.Tensor:
        """Return what goes to each place: in turn, or as it was drawn."""
        if self.values is None:
            return pool[torch.arange(self.count) % len(pool)][self.chosen()]
        return pool[torch.tensor(self.values) % len(pool)]

    def chosen(self) -> Any:
        """Return an index of the places that are edited."""
        return slice(None) if self.places is None else list(self.places)

    def conclude(self, contrast: Contrast) -> Contrast:
        """Tell of the smallest edit that was found."""
        return contrast._replace(smallest=self._shown or contrast.smallest)


def is_editable(tensor: torch.Tensor) -> bool:
    """Say whether the numbers of a tensor can be exchanged without breaking a graph."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
        and not (tensor.requires_grad or tensor.is_inference() or tensor.is_complex())
        and 1 < tensor.numel() <= MOST_ELEMENTS
    )
