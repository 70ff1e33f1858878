"""Finds shapes in the user's code whose axes change their places, as they are written."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from torch import nn

from trainguard.observe.tools.discarded import find_function, name_called
from trainguard.observe.tools.user_line import foreign

_VIEWS = {"reshape", "view"}


def exchanges_named_axes(module: nn.Module) -> bool:
    """
    Say whether a forward of a module, or of a part of it, views axes in another order by name.

    As `b, c, t = x.shape` and then `x.view(b, t, c)`, which keeps the numbers where they are.
    """
    forwards = {type(part).forward for part in module.modules()}
    codes = [code for each in forwards if (code := getattr(each, "__code__", None)) is not None]
    return any(_exchanges(code) for code in codes if foreign(code.co_filename))


@lru_cache(maxsize=256)
def _exchanges(code: CodeType) -> bool:
    """Say whether a function views something in a shape of its own axes in another order."""
    function = find_function(code)
    nodes = list(ast.walk(function)) if function is not None else []
    known = [pair for node in nodes for pair in _named_axes(node)]
    for node in nodes:
        if isinstance(node, ast.Call) and name_called(node) in _VIEWS:
            viewed = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            wanted = _names_in(node.args[0] if len(node.args) == 1 else node.args)
            own = [axes for name, axes in known if name == viewed]
            if any(sorted(axes) == sorted(wanted) and axes != wanted for axes in own):
                return True
    return False


def _named_axes(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield what an assignment names the axes of, and these names: `b, c, t = x.shape`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    names, value = _names_in(node.targets[0]), node.value
    if isinstance(value, ast.Call) and name_called(value) == "size" and not value.args:
        value = value.func
    if len(names) > 1 and isinstance(value, ast.Attribute) and value.attr in ("shape", "size"):
        yield ast.unparse(value.value), names


def _names_in(node: ast.AST | list[ast.expr]) -> list[str]:
    """Return the names of a tuple, in their order; nothing where there is anything else in it."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else node
    parts = parts if isinstance(parts, list) else []
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else []
