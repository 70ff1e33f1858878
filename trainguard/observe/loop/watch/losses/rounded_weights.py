"""Watches single weights of terms of a loss that are rounded to zero, whatever they are made of."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.policy_weights import parts_of_sum
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.tools.discarded import iterate_statements, name_called
from trainguard.observe.tools.user_line import user_frames, variables_of

_GROWTH = 1.1  # from one look to the next: the last one is near the end of the run
_FRAMES = 4  # of the user's code whose variables are looked at
_RANGES = {"range", "trange"}
_ROUNDS = {"floor", "int", "round", "trunc"}

# A file and a line, and what it stores there, and whether that is less than one for sure.
Found = dict[tuple[str, int], tuple[str, bool]]


class RoundedWeights(Watcher):
    """
    The Probe event "rounded weight": a term times zero, which is a variable that is rounded down.

    measured: at how many looks it was, reference: of how many; step: the latest of them. The label
    is the statement that rounds: a floor division, or `int` and the like, of other variables. Where
    it is of the variable of a loop by something else than how often that goes round, a longer run
    may come to one: "rounded weight, perhaps".
    """

    makes = ("Probe:rounded weight", "Probe:rounded weight, perhaps")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._next = self._last = 0  # steps
        self._looks = self._zero = 0
        self._found: Found = {}

    def before_backward(self, loss: torch.Tensor) -> None:
        """Look whether a term of a loss is multiplied by a single zero."""
        step = self.recorder.steps
        if step < self._next or loss.grad_fn is None or not loss.is_cpu:
            return
        self._next, self._last = int(step * _GROWTH) + 1, step
        weights = [
            float(each)
            for node in parts_of_sum(loss.grad_fn)
            for each in autograd_graph.constants_of(node)
            if each.numel() == 1 and each.is_cpu
        ]
        zero = 0.0 in weights
        self.looked |= {"rounded weight"} if weights else set()
        self._looks += 1
        if not zero or (self._zero and not self._found):
            self.recorder.dismiss(self)
            self._found = {}
            return
        self._zero += 1
        named = _find_rounded()
        self._found = {k: v for k, v in named.items() if k in self._found or self._zero == 1}

    def finish(self) -> Iterable[Event]:
        """Return what was rounded to zero at all looks."""
        for (file, line), (text, surely) in list(self._found.items())[:1]:
            where = {"label": text, "step": self._last, "source": f"{file}:{line}"}
            name = "rounded weight" + ", perhaps" * (not surely)
            yield make_probe(name, self._zero, self._looks, **where)


def _find_rounded() -> Found:
    """Return the statements of the running functions whose variable is rounded, and zero."""
    found: Found = {}
    for frame in user_frames(_FRAMES):
        variables = variables_of(frame)
        for name, line, text, surely in _rounding_statements(frame.f_code):
            value = variables.get(name)
            if type(value) in (int, float) and not value:
                found[frame.f_code.co_filename, line] = text, surely
    return found


@lru_cache(256)
def _rounding_statements(code: CodeType) -> tuple[tuple[str, int, str, bool], ...]:
    """
    Return the variables that a function rounds what varies into: name, line, statement.

    And whether the fraction is of a loop's variable by how often the loop goes round.
    """
    statements = list(iterate_statements(code))
    rounds = {pair for each in statements if isinstance(each, ast.For) for pair in _times_of(each)}
    found = []
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
            parts = [node for node in ast.walk(statement.value) if _rounds(node)]
            if parts:
                pairs = {pair for part in parts for pair in _fractions_in(part)}
                text = ast.unparse(statement)
                found.append((target.id, statement.lineno, text, bool(pairs & rounds)))
    return tuple(found)


def _times_of(loop: ast.For) -> Iterator[tuple[str, str]]:
    """Yield the variable of a loop over a range, and how often it goes round."""
    call = loop.iter
    if isinstance(call, ast.Call) and name_called(call) in _RANGES and len(call.args) == 1:
        yield ast.unparse(loop.target), ast.unparse(call.args[0])


def _fractions_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the two sides of each quotient in an expression."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div | ast.FloorDiv):
            yield ast.unparse(each.left), ast.unparse(each.right)


def _rounds(node: ast.AST) -> bool:
    """Say whether an expression rounds a fraction of variables."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return any(isinstance(part, ast.Name | ast.Attribute) for part in ast.walk(node.left))
    parts = ast.walk(node) if isinstance(node, ast.Call) and name_called(node) in _ROUNDS else ()
    return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div) for each in parts)
