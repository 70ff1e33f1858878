"""Finds lines of the user's files that may explain what a run shows: by what is written there."""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from types import FrameType

from trainguard.observe.tools.discarded import find_function, name_called, parse_file
from trainguard.observe.tools.user_line import foreign, place_of

FEW = 3  # lines: more of them tell nothing
_CUTS = {"argmax", "detach", "item", "no_grad", "numpy", "round", "sign", "tolist"}
_DATA = ".data"
_FOLLOWS = {"lerp_", "update_parameters"}
_NARROW = {"bfloat16", "float16", "half"}
_ORDERS = {"permutation", "permuted", "randperm", "shuffle"}


def find_backward(file: str) -> list[str]:
    """Return the line that computes gradients in a file, where a single one does."""
    return _find(file, lambda node: _calls(node, {"backward"}), most=1)


def find_casts(file: str) -> list[str]:
    """Return the lines that make numbers of few digits in a file: `.to(torch.bfloat16)`."""
    return _find(file, _is_cast)


def find_manual_steps(file: str) -> list[str]:
    """Return the lines that add gradients to their parameters in a file: `p -= rate * p.grad`."""
    return _find(file, _adds_gradient)


def find_modes(file: str) -> list[str]:
    """Return the lines that put something into evaluation mode in a file."""
    return _find(file, lambda node: _calls(node, {"eval"}))


def find_orders(file: str) -> list[str]:
    """Return the lines that draw another order, or put something in one, in a file."""
    return _find(file, lambda node: _calls(node, _ORDERS))


def find_thaws(file: str) -> list[str]:
    """Return the lines that have parameters require gradients in a file."""
    return _find(file, _thaws)


def find_updates(file: str) -> list[str]:
    """Return the lines that move one tensor towards another in a file."""
    return _find(file, lambda node: _calls(node, _FOLLOWS)) or _find(file, _scales_and_adds)


def find_alias(file: str, name: str) -> str:
    """Return the line that gives another variable the value of one, `PAD = EOS`; or nothing."""
    return next(iter(_find(file, lambda node: _is_alias(node, name), most=1)), "")


def count_arguments(file: str, name: str) -> int:
    """Return the most arguments that a function or method of a name is given in a file."""
    calls = (node for node in _walk(parse_file(file)) if _calls(node, {name}))
    given = (len(c.args) + len(c.keywords) for c in calls if isinstance(c, ast.Call))
    return max(given, default=0)


def find_cuts(functions: Iterable[Callable[..., object] | None]) -> list[str]:
    """Return the lines of some functions that take something out of its graph, if few do."""
    found = set[tuple[str, int]]()
    for function in functions:
        code = getattr(inspect.unwrap(function) if function else None, "__code__", None)
        if code is not None and foreign(code.co_filename):
            nodes = _walk(find_function(code))
            found |= {(code.co_filename, line) for line in _lines(filter(_cuts, nodes))}
    return [f"{file}:{line}" for file, line in sorted(found)] if len(found) <= FEW + 1 else []


def find_division(frames: Iterable[FrameType]) -> str:
    """
    Return the line of running functions that divides what they get, or later on; or nothing.

    The innermost that does as it runs, or that has a single such line left.
    """
    for frame in frames:
        code, now = frame.f_code, frame.f_lineno
        tree = find_function(code) if code.co_name != "<module>" else parse_file(code.co_filename)
        nodes = list(_walk(tree))
        lines = _lines(node for node in nodes if isinstance(getattr(node, "op", None), ast.Div))
        if any(_is_simple(node) and _spans(node, now, lines) for node in nodes):
            return place_of(frame)
        after = [line for line in lines if line > now]
        if len(after) == 1:
            return f"{code.co_filename}:{after[0]}"
    return ""


def _find(file: str, test: Callable[[ast.AST], bool], most: int = FEW) -> list[str]:
    """Return the lines of what passes a test in a file, `file:line`; nothing if there are many."""
    lines = _lines(filter(test, _nodes_of(file)))
    return [f"{file}:{line}" for line in lines] if len(lines) <= most else []


@lru_cache(maxsize=8)
def _nodes_of(file: str) -> Sequence[ast.AST]:
    """Return all that is written in a file; nothing where it cannot be read."""
    return tuple(_walk(parse_file(file)))


def _walk(tree: ast.AST | None) -> Iterator[ast.AST]:
    """Yield all nodes of what was read; none where nothing could be."""
    return ast.walk(tree) if tree is not None else iter(())


def _lines(nodes: Iterable[ast.AST]) -> list[int]:
    """Return the numbers of the lines where nodes begin, each once."""
    return sorted({node.lineno for node in nodes if isinstance(node, ast.expr | ast.stmt)})


def _is_simple(node: ast.AST) -> bool:
    """Say whether a node is a statement that has none inside."""
    return isinstance(node, ast.stmt) and not hasattr(node, "body")


def _spans(node: ast.AST, now: int, lines: Iterable[int]) -> bool:
    """Say whether a statement runs in a line, and has one of some lines."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return first <= now <= last and any(first <= line <= last for line in lines)


def _calls(node: ast.AST, names: set[str]) -> bool:
    """Say whether a node calls something by one of some names."""
    return isinstance(node, ast.Call) and name_called(node) in names


def _arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return what a call is given."""
    return [*call.args, *(each.value for each in call.keywords)]


def _cuts(node: ast.AST) -> bool:
    """Say whether a node takes something out of its graph."""
    return _calls(node, _CUTS) or (isinstance(node, ast.Attribute) and node.attr == _DATA[1:])


def _is_alias(node: ast.AST, name: str) -> bool:
    """Say whether a node gives a variable the value of another one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == name and all(isinstance(each, ast.Name) for each in node.targets)


def _is_cast(node: ast.AST) -> bool:
    """Say whether a node makes numbers of few digits."""
    if not isinstance(node, ast.Call):
        return False
    named = {getattr(each, "attr", "") for each in _arguments_of(node)}
    return name_called(node) in _NARROW or (name_called(node) == "to" and bool(named & _NARROW))


def _thaws(node: ast.AST) -> bool:
    """Say whether a node has parameters require gradients."""
    if isinstance(node, ast.Assign):
        named = any(getattr(each, "attr", "") == "requires_grad" for each in node.targets)
        return named and not _is_false(node.value)
    if not isinstance(node, ast.Call) or name_called(node) != "requires_grad_":
        return False
    return not any(map(_is_false, _arguments_of(node)))


def _is_false(node: ast.expr) -> bool:
    """Say whether an expression is False, as it is written."""
    return isinstance(node, ast.Constant) and node.value is False


def _adds_gradient(node: ast.AST) -> bool:
    """Say whether a node adds its own gradient to a tensor."""
    if isinstance(node, ast.Call) and name_called(node) in ("add_", "sub_"):
        owner, given = getattr(node.func, "value", None), _arguments_of(node)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        owner, given = node.target, [node.value]
    else:
        return False
    parts = [part for each in given for part in ast.walk(each)]
    grads = [each for each in parts if isinstance(each, ast.Attribute) and each.attr == "grad"]
    own = "" if owner is None else ast.unparse(owner).removesuffix(_DATA)
    return any(ast.unparse(each.value) == own for each in grads)


def _scales_and_adds(node: ast.AST) -> bool:
    """Say whether a node is `average.mul_(decay).add_(...)`, or copies a sum into a tensor."""
    if not isinstance(node, ast.Call):
        return False
    owner = getattr(node.func, "value", None)
    if name_called(node) == "add_":
        return isinstance(owner, ast.Call) and name_called(owner) == "mul_"
    sums = (each.op for each in node.args if isinstance(each, ast.BinOp))
    return name_called(node) == "copy_" and any(isinstance(each, ast.Add) for each in sums)
