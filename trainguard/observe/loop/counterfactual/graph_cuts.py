"""Where a step leaves a graph behind: what is detached at each hand-over, and bare gradients."""

import sys
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.marked_graph import (
    CALL,
    CUT,
    LEAST_HANDOVERS,
    find_dead_parts,
    find_dead_terms,
    find_handovers,
    mark,
)
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients.autograd_graph import Node, below
from trainguard.observe.tools.user_line import caller, foreign

_SLOPE = "trainguard: gradient with its graph"
_bends: set[str] = set()  # lines that ask for gradients of these, in a child
_NEAR = 16  # nodes between a gradient and what one of its gradients is asked of
_detach = torch.Tensor.detach
_data: Any = torch.Tensor.data


class StatesHandedOver(Question):
    """
    What is detached keeps its graph, and is known by it.

    measured: the hand-overs of a state, one for each pass of a recurrence, where no state reaches
    the one before but through what is detached; numbers: whether a recurrent layer of torch made
    the states; smallest: the line that detaches.
    """

    name = "states with their graph"
    asks = 2
    waits = True

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether anything is detached, the step as it is has told."""
        return "what is detached keeps its graph"

    def applies(self, plain: Report) -> bool:
        """Say whether one line has detached often enough."""
        return bool(plain["cuts"] >= LEAST_HANDOVERS)

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let what is detached keep its graph, and mark the calls of recurrent layers."""
        on_detach(_keep_graph)
        numpy = torch.Tensor.numpy
        torch.Tensor.numpy = lambda t, **k: numpy(_detach(t), **k)  # type: ignore[method-assign]
        nn.modules.module.register_module_forward_hook(_mark_recurrence)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks for a recurrence."""
        find = partial(find_handovers, held=held_by(call.recorder))
        return _Reader(call.recorder, way_out, call.module, find)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Return what was found."""
        count, layers, line = edited["found"] or (0, False, "")
        return Contrast(float(count), 0.0, (float(layers),), smallest=line)


class GradientsWithGraph(Question):
    """
    The gradients that `torch.autograd.grad` returns have a graph.

    measured: the terms of a loss that move parameters only then; numbers: whether these are terms
    of which another part does, and whether they are gradients of gradients that have their graph;
    smallest: the line that asks for the gradients.
    """

    name = "gradients with their graph"
    asks = 1
    waits = True

    def fits(self, call: ModuleCall) -> str:
        """Ask of any step; whether gradients are asked for, the step as it is has told."""
        return "create_graph=True"

    def applies(self, plain: Report) -> bool:
        """Say whether gradients without a graph were asked for."""
        return bool(plain["bare"])

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let the gradients have a graph."""
        on_bare_gradients(held_by(call.recorder), _with_graph)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that looks for terms that only these gradients give a graph."""
        held = held_by(call.recorder)

        def find(loss: torch.Tensor) -> tuple[list[str], bool, bool]:
            """Return the lines of whole terms, or else of parts; whether it is parts; and again."""
            terms = find_dead_terms(loss, held)
            lines = terms or find_dead_parts(loss, held)
            return lines, not terms, not _bends.isdisjoint(lines[:1])

        return _Reader(call.recorder, way_out, call.module, find)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Return what was found."""
        lines, are_parts, again = edited["found"] or ([], False, False)
        numbers = float(are_parts), float(again)
        return Contrast(float(len(lines)), 0.0, numbers, smallest=lines[0] if lines else "")


class _Reader(Witness):
    """Ends the child with what is found in the graph of a loss, before gradients are computed."""

    def __init__(
        self, recorder: Any, way_out: Exit, module: nn.Module, find: Callable[[torch.Tensor], Any]
    ) -> None:
        super().__init__(recorder, way_out, module)
        self._find = find

    def before_backward(self, loss: torch.Tensor) -> None:
        """Report."""
        self.way_out.report(found=self._find(loss) if loss.grad_fn is not None else None)


def on_detach(answer: Callable[[torch.Tensor, str], torch.Tensor]) -> None:
    """Answer the user's own `x.detach()` and `x.data` of what has a graph; called in a child."""

    def read(tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for the numbers of a tensor."""
        frame = sys._getframe(1)  # noqa: SLF001 the one way to look at callers
        cuts = tensor.grad_fn is not None and torch.is_grad_enabled()
        if cuts and foreign(frame.f_code.co_filename):
            return answer(tensor, f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return _detach(tensor)

    torch.Tensor.detach = read  # type: ignore[assignment]
    torch.Tensor.data = property(read, _data.__set__)  # type: ignore[assignment]


def on_bare_gradients(held: set[int], answer: Callable[..., Any]) -> None:
    """
    Answer the user's own calls of `torch.autograd.grad` that want no graph; called in a child.

    Those for parameters are left alone: they are steps, weights of losses, or what is looked at.
    """
    original = torch.autograd.grad

    @wraps(original)
    def grad(
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return gradients."""
        asked = not isinstance(inputs, torch.Tensor)
        parts = tuple(inputs) if asked else (inputs,)
        given = (outputs, parts if asked else inputs, grad_outputs)
        own = foreign(sys._getframe(1).f_code.co_filename)  # noqa: SLF001
        learned = any(isinstance(part, nn.Parameter) or id(part) in held for part in parts)
        if create_graph or learned or not own:
            found = original(*given, retain_graph, create_graph, **kwargs)
            if own:
                for gradient in found:
                    _ = gradient is None or mark(gradient, _SLOPE, True)
            return found
        return answer(original, *given, retain_graph, **kwargs)

    torch.autograd.grad = grad  # type: ignore[assignment]


def held_by(recorder: Any) -> set[int]:
    """Return the identities of what optimizers hold."""
    return {id(p) for window in recorder.windows for p in window.parameters}


def _keep_graph(tensor: torch.Tensor, line: str) -> torch.Tensor:
    """Return the numbers of a tensor with their graph, marked by the line that detaches them."""
    return mark(tensor.clone(), CUT, line)


def _with_graph(
    original: Callable[..., Any], outputs: Any, inputs: Any, scale: Any, _: Any, **kwargs: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return gradients with their graph, marked by the line that asked for them."""
    line = caller()
    given = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    if any(_SLOPE in node.metadata for each in given for node in _nodes_near(each)):
        _bends.add(line)
    found = original(outputs, inputs, scale, True, True, **kwargs)
    return tuple(mark(g.clone(), CUT, line) if g is not None else None for g in found)


def _nodes_near(tensor: torch.Tensor) -> Iterable[Node]:
    """Return the nodes that a tensor was made by last."""
    return below(tensor.grad_fn, _NEAR) if tensor.grad_fn is not None else ()


def _mark_recurrence(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Mark the states of a recurrent layer with what returned them, and its steps in time."""
    if isinstance(module, nn.RNNCellBase | nn.RNNBase):
        call = (id(module), object(), _steps_of(module, inputs[0]))
        for tensor in tensors_in(output):
            mark(tensor, CALL, call)


def _steps_of(module: nn.Module, inputs: Any) -> int:
    """Return how many steps in time a recurrent layer makes in a call."""
    if isinstance(module, nn.RNNCellBase):
        return 1
    if not isinstance(inputs, torch.Tensor):
        return len(inputs.batch_sizes)
    return int(inputs.shape[1 if inputs.dim() == 3 and module.batch_first else 0])
