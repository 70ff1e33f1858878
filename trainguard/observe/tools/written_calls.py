"""Finds calls in the user's code that mean something else than they do, as they are written."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeGuard

from torch import nn

from trainguard.core.names import words_of
from trainguard.observe.tools.discarded import find_function, name_called, parse_file
from trainguard.observe.tools.user_line import foreign

_NEAR = 3  # lines before and after one
_BLOCKS = ("body", "orelse", "finalbody")


def loads_own_state(frame: FrameType) -> bool:
    """Say whether a line loads into something the state of the same: `a.load(a.state_dict())`."""
    tree = parse_file(frame.f_code.co_filename)
    calls = _calls_in(tree, "load_state_dict")
    here = [each for each in calls if each.lineno <= frame.f_lineno <= (each.end_lineno or 0)]
    return any(_owner(each) == _owner(each.args[0]) != "" for each in here if each.args)


@lru_cache(maxsize=256)
def asks_of_its_own_draw(code: CodeType, line: int) -> bool:
    """
    Say whether a line asks for the probability of a draw that nothing else reads.

    Of the same distribution: `p.log_prob(p.sample())`, or by a variable that is read nowhere else.
    """
    tree = find_function(code) or parse_file(code.co_filename)
    for call in _calls_in(tree, "log_prob"):
        here = call.lineno <= line <= (call.end_lineno or 0)
        drawn = _only_value(tree, call.args[0]) if here and call.args else None
        if isinstance(drawn, ast.Call) and name_called(drawn) == "sample":
            return _object_of(drawn) == _object_of(call) != ""
    return False


@lru_cache(maxsize=256)
def follows_a_set_rate(code: CodeType, line: int) -> bool:
    """
    Say whether statements just before that of a line set a rate: `group["lr"] = lr`.

    In the same block, and with no step between the two.
    """
    tree = find_function(code) or parse_file(code.co_filename)
    nodes = list(ast.walk(tree)) if tree is not None else []
    parts = [getattr(node, part, None) for node in nodes for part in _BLOCKS]
    for block in filter(_is_block, parts):
        here = [each for each in block if each.lineno <= line <= (each.end_lineno or 0)]
        if here and isinstance(here[0], ast.Expr):
            return _last_sets_rate(block[: block.index(here[0])])
    return False


@lru_cache(maxsize=256)
def name_of_third(code: CodeType, line: int, keyword: str) -> str:
    """Return the name of what a call in a line is given third, or by a keyword, if it has one."""
    tree = find_function(code) or parse_file(code.co_filename)
    for call in ast.walk(tree) if tree is not None else ():
        if isinstance(call, ast.Call) and call.lineno <= line <= (call.end_lineno or 0):
            by_keyword = [each.value for each in call.keywords if each.arg == keyword]
            for given in (*by_keyword, *call.args[2:3]):
                if isinstance(given, ast.Name | ast.Attribute):
                    return given.id if isinstance(given, ast.Name) else given.attr
    return ""


def _is_block(block: object) -> TypeGuard[list[ast.stmt]]:
    """Say whether a part of a node is a list of statements."""
    return isinstance(block, list) and bool(block) and isinstance(block[0], ast.stmt)


def _last_sets_rate(statements: list[ast.stmt]) -> bool:
    """Say whether statements set a rate after the last step that they make."""
    for statement in reversed(statements):
        nodes = list(ast.walk(statement))
        stores = [n for n in nodes if isinstance(n, ast.Subscript) and _is_rate(n)]
        if any(isinstance(each.ctx, ast.Store) for each in stores):
            return True
        if any(isinstance(n, ast.Call) and name_called(n) == "step" for n in nodes):
            return False
    return False


def _is_rate(node: ast.Subscript) -> bool:
    """Say whether a rate is looked up, or set."""
    return isinstance(node.slice, ast.Constant) and node.slice.value == "lr"


def repeats_one_layer(root: nn.Module, layer: nn.Module, files: Iterable[str]) -> bool:
    """
    Say whether one layer was made where a list of several is written: `[Block(width)] * depth`.

    In the files of the classes of a module and in others. What is made outside of the list, as in
    `[block] * depth`, may be shared on purpose.
    """
    codes = (getattr(type(part).__init__, "__code__", None) for part in root.modules())
    named = {code.co_filename for code in codes if code is not None}
    own = {file for file in (*named, *files) if foreign(file)}
    return any(type(layer).__name__ in _find_repeated(file) for file in own)


@lru_cache(maxsize=64)
def _find_repeated(file: str) -> frozenset[str]:
    """
    Return the names of what a file calls once in a list that it multiplies.

    And of what a function of the file that is called there returns, as it makes that.
    """
    tree = parse_file(file)
    products = [
        side
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
    ]
    lists = [each.elts for each in products if isinstance(each, ast.List) and len(each.elts) == 1]
    called = {name_called(each[0]) for each in lists if isinstance(each[0], ast.Call)}
    functions = (
        (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)) if tree else ()
    )
    makers = [each for each in functions if each.name in called]
    returned = [n.value for each in makers for n in ast.walk(each) if isinstance(n, ast.Return)]
    return frozenset(called | {name_called(n) for n in returned if isinstance(n, ast.Call)})


def _owner(call: ast.expr) -> str:
    """Return whose state a call loads, or takes; nothing where it does neither."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    states = call.func.attr in ("load_state_dict", "state_dict")
    return ast.unparse(call.func.value) if states else ""


def _object_of(call: ast.Call) -> str:
    """Return whose method is called; nothing where it is a function."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _calls_in(tree: ast.AST | None, method: str) -> Iterator[ast.Call]:
    """Yield the calls of a method."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and name_called(node) == method:
            yield node


def _only_value(tree: ast.AST | None, value: ast.expr) -> ast.expr | None:
    """Return a value; of a variable the one that it is given, where it is read once; or None."""
    if not isinstance(value, ast.Name) or tree is None:
        return value
    nodes = list(ast.walk(tree))
    uses = [each for each in nodes if isinstance(each, ast.Name) and each.id == value.id]
    given = [each for each in nodes if isinstance(each, ast.Assign)]
    made = [each.value for each in given if any(target in uses for target in each.targets)]
    return made[0] if len(uses) == 2 and len(made) == 1 else None


def has_near(source: str, word: str) -> bool:
    """Say whether a line (`file:number`), or one of the few around it, has a word; no line has."""
    file, _, number = source.rpartition(":")
    if not number.isdigit():
        return False
    lines = linecache.getlines(file)[max(0, int(number) - 1 - _NEAR) : int(number) + _NEAR]
    return any(word in words_of(line) for line in lines)
