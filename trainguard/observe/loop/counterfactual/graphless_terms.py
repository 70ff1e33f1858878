"""Terms of a loss that have no graph, and are other numbers where the model is another one."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.marked_graph import (
    find_sums_with_constants,
    is_sum_with_constant,
    mark,
)
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness, read_streams_at
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.tools.user_line import caller

_SUM = "trainguard: sum with a constant"
_PHASE = 7.3  # neighbours are moved in different ways
_MOVED = 0.5  # of the deviation of a parameter: enough for other choices of argmax
_LAYERS = ("linear", "matmul", "__matmul__", "conv", "embedding", "mm", "bmm", "addmm", "cat")
_MOST_TENSORS = 100000  # that are followed


class TermsWithoutGraph(Question):
    """
    The parameters that learn are moved, and what has no graph and is added to the loss is read.

    measured: how many terms without a graph are then other numbers; reference: how many there are;
    numbers: the first that changed, as it is and then; smallest: the line that adds it. Left out
    are numbers that were detached as such, and what is made of the weights of what learns.
    """

    name = "terms without a graph"
    asks = 2
    waits = True
    needs_follow_ups = True

    def __init__(self, moves: bool = False) -> None:
        self._moves = moves
        self._plain: Report = {}

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether a sum has such a term, the step as it is has told."""
        return "other parameters"

    def applies(self, plain: Report) -> bool:
        """Say whether something without a graph was added to what was handed to backward."""
        return bool(plain["sums"]) and not plain["compiled"]

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Move what learns, and follow what is made of it without a graph."""
        if self._moves:
            held = (p for window in call.recorder.windows for p in window.parameters)
            with torch.no_grad():
                for parameter in {id(p): p for p in held if p.requires_grad}.values():
                    _move(parameter)
        _Follower().__enter__()  # type: ignore[no-untyped-call]

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that reads the terms before gradients are computed."""
        return _TermReader(call.recorder, way_out, call.module)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Remember the terms of the step as it is."""
        self._plain = edited
        return Contrast(0.0, float(len(edited["terms"])))

    def follow_ups(self, contrast: Contrast) -> "list[TermsWithoutGraph]":
        """Ask for the terms of a model that was moved, where there are any."""
        return [TermsWithoutGraph(moves=True)] if contrast.reference else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Count the terms that are other numbers."""
        before, after = self._plain["terms"], edited["terms"]
        same_way = [line for _, line in before] == [line for _, line in after]
        if not same_way or self._plain["streams"] != edited["streams"]:
            return contrast._replace(void="another model goes another way to its loss")
        both = zip(before, after, strict=True)
        changed = [(one, other, line) for (one, line), (other, _) in both if one != other]
        if not changed:
            return None
        one, other, line = changed[0]
        return Contrast(float(len(changed)), contrast.reference, (one, other), smallest=line)

    def is_settled(self, contrast: Contrast) -> bool:
        """One change is enough; a count may be the same by chance."""
        return contrast.measured > 0


@dataclass(eq=False)
class _Made:
    """
    A tensor without a graph that is made of what learns, and what it was made of.

    weighs: whether what learns is multiplied by it, or compared with it, and not fed with it.
    told: whether it is a number that was detached as such.
    """

    tensor: torch.Tensor
    sources: list["_Made"] = field(default_factory=list)
    weighs: bool = False
    told: bool = False


class _Sum(NamedTuple):
    """A sum of what learns and of what has no graph, which may be made of what learns."""

    value: float
    line: str
    made: _Made | None


class _Follower(TorchFunctionMode):
    """Follows what is made of parameters without a graph, and marks the sums that it is part of."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, _Made] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and look at what it returns."""
        result = function(*args, **(kwargs or {}))
        if len(self._made) < _MOST_TENSORS:
            name, given = getattr(function, "__name__", ""), [*args, *(kwargs or {}).values()]
            for made in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(made, torch.Tensor):
                    self._take(name, made, given)
        return result

    def _take(self, name: str, result: torch.Tensor, given: list[Any]) -> None:
        """Take down what a tensor without a graph is made of, or what has a graph is made with."""
        tensors = list(tensors_in(given))
        known = [self._made[id(each)] for each in tensors if id(each) in self._made]
        if result.grad_fn is None:
            if known or any(each.requires_grad for each in tensors):
                made = self._made.setdefault(id(result), _Made(result))
                made.sources += [each for each in known if each is not made]
                made.told |= name == "detach" and result.numel() == 1
        elif is_sum_with_constant(result.grad_fn):
            self._take_sum(result, given[:2])
        elif not name.startswith(_LAYERS):
            for each in known:
                each.weighs |= each.tensor.is_floating_point()

    def _take_sum(self, result: torch.Tensor, given: list[Any]) -> None:
        """Mark a sum with a number that has no graph, or one for each sample."""
        for each in given:
            if isinstance(each, float | int):
                mark(result, _SUM, _Sum(float(each), caller(2), None))
            elif isinstance(each, torch.Tensor) and not each.requires_grad and each.dim() < 2:
                made = self._made.get(id(each))
                mark(result, _SUM, _Sum(float(each.sum()), caller(2), made))


class _TermReader(Witness):
    """Ends the child with the terms that have no graph, before gradients are computed."""

    def before_backward(self, loss: torch.Tensor) -> None:
        """Report."""
        found = [n.metadata[_SUM] for n in find_sums_with_constants(loss) if _SUM in n.metadata]
        terms = [(one.value, one.line) for one in found if not _is_meant(one.made)]
        self.way_out.report(terms=terms, streams=read_streams_at())


def _is_meant(made: _Made | None) -> bool:
    """Say whether a number was detached as such, or is made of what the rest is weighed by."""
    seen: list[_Made] = [made] if made is not None else []
    for each in seen:
        if each.told or each.weighs:
            return True
        seen += [source for source in each.sources if source not in seen]
    return False


def _move(parameter: torch.Tensor) -> None:
    """Move each number of a parameter by some of their deviation, and draw nothing."""
    if parameter.numel() > 1 and parameter.is_floating_point():
        waves = torch.arange(parameter.numel(), dtype=parameter.dtype).mul(_PHASE).sin()
        parameter += _MOVED * parameter.std() * waves.reshape(parameter.shape)
