"""Finds differences, sums and products of bytes in the user's code, which begin anew past 255."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.observe.tools.arrays import Array, array_of
from trainguard.observe.tools.discarded import iterate_statements, name_called

# Of arrays and tensors, and of their libraries: what they return are the same numbers.
_SAME = {
    *("ascontiguousarray", "clone", "contiguous", "copy", "detach", "expand_dims", "flatten"),
    *("flip", "fliplr", "flipud", "from_numpy", "moveaxis", "permute", "ravel", "reshape", "roll"),
    *("rot90", "squeeze", "swapaxes", "transpose", "unsqueeze"),
}
# Around them: what is left past 255, or which of two is larger, may be meant.
_MEANT = (ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)
_CHOICES = {"max", "maximum", "min", "minimum", "where"}
_CALCULATE = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply}
_ROWS, _NUMBERS = 64, 1 << 18  # that are looked at
_Operation = ast.BinOp | ast.AugAssign
_PICTURES = 16  # the least that a largest number is of: smaller ones are masks, or classes


@dataclass(frozen=True, slots=True)
class Operation:
    """What is computed of two arrays of bytes, and how many results of those looked at wrap."""

    text: str
    line: int
    wrapped: int
    looked: int


def find_operations(code: CodeType, names: Mapping[str, Any]) -> Iterator[Operation]:
    """
    Yield the differences, sums and products of two arrays of bytes in a function.

    names: its variables and what they may stand for; the arrays themselves are looked at.
    """
    known: dict[str, Array | None] = {}
    statements = list(iterate_statements(code))
    given = [target for each in statements for target in getattr(each, "targets", ())]
    once = [ast.unparse(each) for each in given]
    for statement in statements:
        for node in _operations(statement):
            left, right = (_read(side, names, known) for side in _sides(node))
            if left is not None and right is not None:
                wrapped, looked = _count(node.op, left, right)
                if looked:
                    yield Operation(ast.unparse(node), node.lineno, wrapped, looked)
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                name = ast.unparse(target)
                kept = _bytes_of(names.get(name)) if once.count(name) == 1 else None
                known[name] = kept if kept is not None else _read(statement.value, names, known)


def _operations(node: ast.AST) -> Iterator[_Operation]:
    """Yield the operations of a statement, but for those in what knows that numbers begin anew."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _CALCULATE:
        yield node
    chooses = isinstance(node, ast.Call) and name_called(node) in _CHOICES
    meant = isinstance(node, ast.BinOp) and isinstance(node.op, _MEANT)
    if not (chooses or meant or isinstance(node, ast.IfExp)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _operations(child)


def _sides(node: _Operation) -> tuple[ast.expr, ast.expr]:
    """Return the two sides of an operation."""
    return (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)


def _read(
    node: ast.expr, names: Mapping[str, Any], known: Mapping[str, Array | None]
) -> Array | None:
    """Return the bytes that an expression is made of; None where it is none, or not known."""
    if isinstance(node, ast.Name):
        return known[node.id] if node.id in known else _bytes_of(names.get(node.id))
    if isinstance(node, ast.Attribute):
        return _bytes_of(_held(node, names))
    if isinstance(node, ast.Subscript):
        held = _held(node.value, names)
        own = _bytes_of(held[0]) if isinstance(held, list | tuple) and held else None
        return own if own is not None else _read(node.value, names, known)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if node.func.attr not in _SAME:
            return None
        is_library = isinstance(owner, ast.Name) and isinstance(names.get(owner.id), ModuleType)
        values = node.args[:1] if is_library else [owner]
        return _read(values[0], names, known) if values else None
    return None


def _held(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, or an attribute that an object keeps, is; None where it is computed."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _held(node.value, names)
    if isinstance(owner, nn.Module):
        return owner._buffers.get(node.attr)  # noqa: SLF001 its __getattr__ may be the user's
    kept = None if isinstance(owner, torch.Tensor) else getattr(owner, "__dict__", None)
    return kept.get(node.attr) if isinstance(kept, Mapping) else None


def _bytes_of(value: Any) -> Array | None:
    """Return an array of bytes that are pictures, or the like, as one; of others nothing."""
    if type(value) is torch.Tensor and value.dtype is torch.uint8 and value.is_cpu:
        value = array_of(value)
    if type(value) is not np.ndarray or value.dtype != np.uint8 or not value.size or not value.ndim:
        return None
    some = _first_rows(value)
    return some if some.max() > _PICTURES else None


def _first_rows(array: Array) -> Array:
    """Return as many rows as are looked at, two at least where there are two."""
    row = max(array.size // len(array), 1)
    return array[: min(_ROWS, max(_NUMBERS // row, 2))]


def _count(operator: ast.operator, left: Array, right: Array) -> tuple[int, int]:
    """Return how many results do not fit into a byte, and of how many: of neighbours in one."""
    one, other = left.astype(np.int64), right.astype(np.int64)
    is_one = left.shape == right.shape and np.may_share_memory(left, right) and len(left) > 1
    # Which of two neighbours is the first is not known: both ways must be too much.
    pairs = [(one[:-1], one[1:]), (one[1:], one[:-1])] if is_one else [(one, other)]
    try:
        results = [_CALCULATE[type(operator)](*pair) for pair in pairs]
    except ValueError:  # of parts whose shapes only fit once they are taken
        return 0, 0
    largest = np.iinfo(np.uint8).max
    return min(int(((each < 0) | (each > largest)).sum()) for each in results), results[0].size
