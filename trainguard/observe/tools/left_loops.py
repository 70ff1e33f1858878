"""Finds loops of the user's code that a run leaves in their first round, always."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from trainguard.observe.tools.discarded import parse_file
from trainguard.observe.tools.user_line import variables_of

_NAMED = 2  # names and attributes between a variable and what a loop goes through
_WRAPS = {"enumerate", "tqdm", "trange", "iter", "list"}  # what hands on what it goes through


def find_left_loop(frame: FrameType) -> tuple[int, str, int]:
    """
    Return the line that leaves the loop over batches in which a frame is, in its first round.

    With the statement, and how many rounds the loop would have had; (0, "", 0) where there is none,
    or where nobody knows that it goes through a DataLoader of several batches.
    """
    for loop, leaves in _left_loops(frame.f_code.co_filename):
        if loop.body[0].lineno <= frame.f_lineno <= leaves.lineno:
            rounds = _count_rounds(loop.iter, variables_of(frame) | frame.f_globals)
            if rounds > 1:
                return leaves.lineno, ast.unparse(leaves), rounds
    return 0, "", 0


@lru_cache(maxsize=64)
def _left_loops(file: str) -> tuple[tuple[ast.For, ast.stmt], ...]:
    """Return the loops of a file that end in a return or a break, with nothing that goes round."""
    tree = parse_file(file)
    return tuple(_find_in(tree)) if tree is not None else ()


def _find_in(tree: ast.Module) -> Iterator[tuple[ast.For, ast.stmt]]:
    """Yield loops whose last statement leaves them, and that no `continue` goes on with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.body[-1], ast.Return | ast.Break):
            goes_on = any(isinstance(each, ast.Continue) for each in ast.walk(node))
            if not goes_on:
                yield node, node.body[-1]


def _count_rounds(source: ast.expr, names: dict[str, Any]) -> int:
    """Return of how many batches a loop is; 0 where that cannot be read."""
    while isinstance(source, ast.Call) and source.args:
        called = source.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if name not in _WRAPS:
            return 0
        source = source.args[0]
    found = _look_up(source, names, _NAMED)
    try:
        return len(found) if isinstance(found, DataLoader) else 0
    except TypeError:  # a stream has no length
        return 0


def _look_up(source: ast.expr, names: dict[str, Any], depth: int) -> Any:
    """Return what a name or an attribute is, None where a look could do something."""
    if isinstance(source, ast.Name):
        return names.get(source.id)
    if isinstance(source, ast.Attribute) and depth:
        owner = _look_up(source.value, names, depth - 1)
        return getattr(owner, "__dict__", {}).get(source.attr)
    return None
