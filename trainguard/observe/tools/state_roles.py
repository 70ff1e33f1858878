"""Finds calls of LSTM layers with two states, and whether these are in the other order."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from trainguard.observe.tools.discarded import add_self, find_object, read_statements

_LAYERS = (nn.LSTM, nn.LSTMCell)
_SAME = {"clone", "contiguous", "detach", "squeeze", "to", "unsqueeze"}  # of the same state


def find_states(
    code: Any, names: Mapping[str, Any], module: nn.Module | None = None
) -> Iterator[tuple[str, int, bool]]:
    """
    Yield the statements that give an LSTM two states that LSTMs of the function have returned.

    With its line, and whether it takes the one for the other: `c, h = self.cell(x, (h, c))`, as the
    layer returns h first. Of variables that hold what such layers returned at one place alone.
    names, module: as of find_discarded.
    """
    names = add_self(code, names, module)
    made = [each for each in read_statements(code) if isinstance(each, ast.Assign)]
    calls = [(each, each.value) for each in made if _is_of_layer(each.value, names)]
    if not calls:
        return
    places: dict[str, set[int]] = {}
    for statement, _ in calls:
        for place, name in enumerate(_name_states(statement.targets)):
            places.setdefault(name, set()).add(place)
    exchanged = {name for each in made for name in _name_exchanged(each)}
    for statement, call in calls:
        given = _name_given(call)
        held = [places.get(name) for name in given]
        if not exchanged.intersection(given) and held in ([{0}, {1}], [{1}, {0}]):
            yield ast.unparse(statement), statement.lineno, held == [{1}, {0}]


def _is_of_layer(value: ast.expr, names: Mapping[str, Any]) -> bool:
    """Say whether a value is what an LSTM layer returns, or one of a list of them."""
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    if isinstance(called, ast.Subscript):
        layers = find_object(called.value, names)
        inside = list(nn.Module.children(layers)) if isinstance(layers, nn.ModuleList) else []
        return bool(inside) and all(type(layer) in _LAYERS for layer in inside)
    return type(find_object(called, names)) in _LAYERS


def _name_states(targets: list[ast.expr]) -> list[str]:
    """Return the variables of the two states that a layer returns, nothing where it has none."""
    if len(targets) != 1 or not isinstance(targets[0], ast.Tuple):
        return []
    parts = targets[0].elts
    inner = parts[1] if len(parts) == 2 and isinstance(parts[1], ast.Tuple) else targets[0]
    return [each.id for each in inner.elts if isinstance(each, ast.Name)] if _is_pair(inner) else []


def _name_given(call: ast.expr) -> list[str]:
    """Return the variables of the two states that a layer is given."""
    assert isinstance(call, ast.Call)
    given = call.args[1:2] + [key.value for key in call.keywords if key.arg == "hx"]
    if len(given) != 1 or not isinstance(given[0], ast.Tuple):
        return []
    return [each.id for each in map(_before, given[0].elts) if isinstance(each, ast.Name)]


def _is_pair(parts: ast.Tuple) -> bool:
    """Say whether a tuple is of two variables."""
    return len(parts.elts) == 2 and all(isinstance(each, ast.Name) for each in parts.elts)


def _before(node: ast.expr) -> ast.expr:
    """Return what a state is of: `h` of `h.detach()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _SAME:
            break
        node = node.func.value
    return node


def _name_exchanged(statement: ast.Assign) -> Iterator[str]:
    """Yield the variables of statements such as `h, c = c, h`."""
    for part in ast.walk(statement.value) if isinstance(statement.value, ast.Tuple) else ():
        if isinstance(part, ast.Name):
            yield part.id
