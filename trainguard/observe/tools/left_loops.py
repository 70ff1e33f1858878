"""Finds the loop over batches in which the user's code is, and whether it can go round at all."""

import ast
from functools import lru_cache
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from trainguard.observe.tools.discarded import name_called, parse_file
from trainguard.observe.tools.user_line import variables_of

_NAMED = 2  # names and attributes between a variable and what a loop goes through
_WRAPS = {"enumerate", "tqdm", "iter", "list"}  # what hands on what it goes through


def find_loop(frame: FrameType) -> tuple[int, ast.stmt | None]:
    """
    Return of how many batches the loop is in which a frame is, and what leaves it in any round.

    (0, None) where nobody knows that it goes through a DataLoader of several batches.
    """
    inside = [
        loop
        for loop in _loops_of(frame.f_code.co_filename)
        if loop.body[0].lineno <= frame.f_lineno <= (loop.body[-1].end_lineno or 0)
    ]
    names = {**frame.f_globals, **variables_of(frame)} if inside else {}
    for loop in reversed(inside):  # those inside of others come after them
        rounds = _count_rounds(loop.iter, names)
        if rounds > 1:
            return rounds, _leaves(loop)
    return 0, None


@lru_cache(maxsize=64)
def _loops_of(file: str) -> tuple[ast.For, ...]:
    """Return the loops of a file."""
    tree = parse_file(file)
    nodes = ast.walk(tree) if tree is not None else ()
    return tuple(node for node in nodes if isinstance(node, ast.For))


def _leaves(loop: ast.For) -> ast.stmt | None:
    """Return the last statement of a loop if it leaves it, and no `continue` goes on before."""
    last = loop.body[-1]
    goes_on = any(isinstance(each, ast.Continue) for each in ast.walk(loop))
    return last if isinstance(last, ast.Return | ast.Break) and not goes_on else None


def _count_rounds(source: ast.expr, names: dict[str, Any]) -> int:
    """Return of how many batches a loop is; 0 where that cannot be read."""
    while isinstance(source, ast.Call) and source.args:
        if name_called(source) not in _WRAPS:
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
