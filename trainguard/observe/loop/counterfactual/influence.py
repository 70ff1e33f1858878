"""Where an unwanted influence enters a step: the first result in which it is seen, and its line."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from trainguard.core.notebook import short_source
from trainguard.observe.loop.counterfactual.evaluation_mode import describe_part
from trainguard.observe.loop.counterfactual.forking import Exit
from trainguard.observe.loop.counterfactual.question import ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Numbers, Witness, find_changes
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.user_line import caller

_MOST_RESULTS = 2048  # of torch and of modules that are told apart
_MOST_NUMBERS = 2048  # of each: a megabyte for hundred of them goes through the pipe
_EACH = 3  # tensors of a result that are looked at
# What remains of a tensor, in each way in which it may be laid out; nothing where none is known.
Kept = Callable[[torch.Tensor], list[torch.Tensor]]


class SeenResult(NamedTuple):
    """
    Some numbers of what a function of torch or a module returned.

    place: the innermost module, or the function outside of all, and the line of the user's code.
    numbers: in each way in which it may be laid out.
    """

    place: str
    numbers: list[Numbers]


class Traced(Question):
    """A follow-up: what comes up in a step with the edit of a question, or without it."""

    def __init__(self, question: Question, *, edits: bool) -> None:
        self._question = copy(question)
        self._question.edits = edits

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Edit what the question does, and look from then on."""
        self._question.edit(call, way_out)
        self._results.begin()

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return that of the question, which reports the results too."""
        witness = self._question.witness(call, way_out)
        made = call.recorder.watcher(MadeLines)
        self._results = _Results(call.module, self._question.kept(call), made.find_line)
        witness.results = self._results.found
        return witness


class _Results(TorchFunctionMode):
    """Takes down what functions of torch and modules return, but for what the edit may change."""

    def __init__(
        self, module: nn.Module, kept: Kept, find_line: Callable[[nn.Module], str]
    ) -> None:
        super().__init__()
        self.found: list[SeenResult] = []
        self._module, self._kept, self._find_line = module, kept, find_line
        self._names = {part: describe_part(part, name) for name, part in module.named_modules()}
        self._inside = [module]  # the modules that are being called
        self._looks = False

    def begin(self) -> None:
        """Look from now on, until the process ends."""
        register_module_forward_pre_hook(self._go_in)
        register_module_forward_hook(self._come_out, always_call=True)
        self.__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch; what is written in place is its result too."""
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self._take(args[0] if name == "__setitem__" else result, name)
        return result

    def _go_in(self, module: nn.Module, _: Any) -> None:
        """See that a module is called; the first one was before."""
        if self._inside != [module] or module is not self._module:
            self._inside.append(module)

    def _come_out(self, module: nn.Module, _: Any, output: Any) -> None:
        """Take down what a module returned: nothing else tells of what is compiled."""
        self._take(output, "")
        del self._inside[-1:]

    def _take(self, result: Any, function: str) -> None:
        """Take down some numbers of a result."""
        if self._looks or len(self.found) >= _MOST_RESULTS or is_transforming():
            return
        self._looks = True
        tensors = [tensor for tensor in tensors_in(result) if _is_readable(tensor)][:_EACH]
        for tensor in tensors:
            kept = self._kept(tensor.detach() if not tensor.requires_grad else tensor)
            if kept:
                self.found.append(SeenResult(self._place(function), list(map(_some_of, kept))))
        self._looks = False

    def _place(self, function: str) -> str:
        """Return where the code is, in words."""
        inside = self._inside[-1] if self._inside else None
        told = f"`{function.strip('_')}`"
        if inside is not None:
            told = self._names.get(inside) or describe_part(inside, "")
        line, made = short_source(caller()), self._find_line(inside) if inside is not None else ""
        told = f"{told} at {line}" if line else told
        return f"{told}, made at {short_source(made)}" if made else told


def find_entry(plain: Sequence[SeenResult], edited: Sequence[SeenResult], rounding: float) -> str:
    """Return the place of the first result that an edit changed, where both steps went one way."""
    for before, after in zip(plain, edited, strict=False):
        pairs = list(zip(before.numbers, after.numbers, strict=False))
        if before.place != after.place or any(a.shape != b.shape for a, b in pairs):
            return ""
        if all(find_changes(a, b, rounding).any() for a, b in pairs):
            return before.place
    return ""


def keep_rows_after_first(rows: int) -> Kept:
    """Return what leaves out the first of so many samples, and tables of all pairs of them."""

    def keep(tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the rest of it."""
        axes = _axes(tensor, rows) if tensor.dim() != 2 or len(_axes(tensor, rows)) < 2 else []
        return [tensor.narrow(axis, 1, rows - 1) for axis in axes]

    return keep


def keep_in_order(order: torch.Tensor) -> Kept:
    """Return what puts samples in an order, and leaves sums over them as they are."""

    def keep(tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return all of it."""
        if not tensor.dim():
            return [tensor] if tensor.requires_grad else []
        return [tensor.index_select(axis, order) for axis in _axes(tensor, len(order))]

    return keep


def keep_places(edited: torch.Tensor, *, learned: bool = False) -> Kept:
    """
    Return what leaves out the places of samples that an edit may change, wherever they stand.

    learned: whether to look at nothing but what has a graph.
    """
    where = edited.clone()

    def keep(tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the rest of it; nothing where it may have such places in another order."""
        if learned and not tensor.requires_grad:
            return []
        if tensor.shape == where.shape:
            return [tensor.masked_fill(where, 0)]
        masks = list(_layouts(where, tuple(tensor.shape))) if where.dim() == 2 else []
        for mask in masks:
            tensor = tensor.masked_fill(mask, 0)
        return [tensor] if masks or _has_no_places(tensor, len(where)) else []

    return keep


def _layouts(where: torch.Tensor, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Yield masks for every axis of a tensor that may be that of places; one may be cut off."""
    rows, edge = len(where), where.new_ones(len(where), 1)
    less = where[:, 1:] | where[:, :-1]
    more = torch.cat([where, edge], 1) | torch.cat([edge, where], 1)
    for mask in (where, *(each for each in (less, more) if each.shape[1] != rows)):
        places = mask.shape[1]
        batch = [axis for axis, size in enumerate(shape) if size == rows != places]
        for axis in (axis for axis, size in enumerate(shape) if size == places):
            view = [places if other == axis else 1 for other in range(len(shape))]
            if len(batch) == 1:
                view[batch[0]] = rows
                yield (mask if batch[0] < axis else mask.T).reshape(view)
            else:
                yield mask.any(0).reshape(view)
        if shape and shape[0] == rows * places:
            either = mask.flatten() | mask.T.flatten()
            yield either.reshape(-1, *[1] * (len(shape) - 1))


def _has_no_places(tensor: torch.Tensor, rows: int) -> bool:
    """Say whether a tensor has a row for each sample, or is a number with a graph."""
    if not tensor.dim():
        return tensor.requires_grad
    return tensor.dim() <= 2 and len(tensor) == rows and _axes(tensor, rows) == [0]


def _axes(tensor: torch.Tensor, size: int) -> list[int]:
    """Return the axes of a tensor that have so many places."""
    return [axis for axis, own in enumerate(tensor.shape) if own == size]


def _is_readable(tensor: torch.Tensor) -> bool:
    """Say whether a result has plain numbers that an edit could change."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
    return plain and tensor.is_cpu and tensor.is_floating_point() and not tensor.is_nested


def _some_of(tensor: torch.Tensor) -> Numbers:
    """Return numbers from all over a tensor; an odd stride meets all columns in turn."""
    stride = tensor.numel() // _MOST_NUMBERS | 1
    numbers: Numbers = tensor.detach().reshape(-1)[::stride].float().numpy().copy()
    return numbers
