"""Follows what a line of the user's code is given to where it was cut out, or scaled."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

from trainguard.observe.tools.discarded import find_function, name_called, parse_file
from trainguard.observe.tools.user_line import user_frame
from trainguard.observe.tools.written_lines import FEW

_SPLITS = {
    *("random_split", "train_test_split", "Subset", "split", "chunk", "tensor_split", "take"),
    *("skip", "head", "tail", "iloc", "loc", "sample", "randperm", "permutation"),
}
_ROUNDS = 3  # of names that are made from names of loops
_SCALES = (ast.Mult, ast.Div)
_MOST = 32  # names that are followed
_CASTS = {"astype", "byte", "int", "normalize", "short", "to"}
_Made = ast.Assign | ast.For  # a statement that gives names their values
_Scope = tuple[ast.AST, FrameType | None]  # what is written there, and where it runs


def find_cut(frame: FrameType) -> str:
    """
    Return the line that cuts the data that a running line is given out of others, `x[:100]`.

    By names, from their last assignment above to the one before, out of functions into those that
    call them. Nothing where there is none.
    """
    found = ((file, made) for file, made, tree in _follow(frame) if _cuts(made, tree))
    return next((f"{file}:{made.lineno}" for file, made in found), "")


def find_scalings(frame: FrameType) -> list[str]:
    """Return the lines that multiply, divide or convert what a running line is given, if few do."""
    found = {(file, made.lineno) for file, made, _ in _follow(frame) if _scales(made)}
    return [f"{file}:{line}" for file, line in sorted(found)] if len(found) <= FEW else []


def _follow(frame: FrameType) -> Iterator[tuple[str, _Made, ast.AST]]:
    """
    Yield the statements that what a running line is given comes from, the latest first.

    Each with its file, and the function or module that it is of.
    """
    scope = _scope_of(frame)
    if scope is None:
        return
    waiting = [(name, scope, frame.f_lineno) for name in _names_at(scope[0], frame.f_lineno)]
    seen = set[tuple[str, int, int]]()
    while waiting and len(seen) < _MOST:
        name, (tree, running), line = waiting.pop(0)
        if (name, id(tree), line) in seen:
            continue
        seen.add((name, id(tree), line))
        made = _last_made(tree, name, line)
        if made is None:
            waiting += _follow_out(name, (tree, running))
            continue
        file = frame.f_code.co_filename if running is None else running.f_code.co_filename
        yield file, made, tree
        names = _names_in(_value_of(made))
        waiting += [(each, (tree, running), made.lineno) for each in names]


def _scope_of(frame: FrameType | None) -> _Scope | None:
    """Return the function or the file that is running in a frame, as it is written."""
    if frame is None:
        return None
    code = frame.f_code
    tree = parse_file(code.co_filename) if code.co_name == "<module>" else find_function(code)
    return (tree, frame) if tree is not None else None


def _follow_out(name: str, scope: _Scope) -> Iterator[tuple[str, _Scope, int]]:
    """Yield what a name stands for outside of a function: what a caller gives, or the file's."""
    tree, frame = scope
    if frame is None or not isinstance(tree, ast.FunctionDef):
        return
    named = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
    around = user_frame(frame.f_back)
    outer = _scope_of(around)
    if name in named and outer is not None and around is not None:
        for call in _calls_at(outer[0], around.f_lineno, tree.name):
            bound = named[1:] if named[:1] == ["self"] else named
            given = dict(zip(bound, call.args, strict=False))
            given |= {each.arg: each.value for each in call.keywords if each.arg}
            if name in given:
                for each in _names_in(given[name]):
                    yield each, outer, around.f_lineno
    elif (whole := parse_file(frame.f_code.co_filename)) is not None:
        last = 1 + max((each.end_lineno or 0 for each in whole.body), default=0)
        yield name, (whole, None), last


def _calls_at(tree: ast.AST, line: int, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function in a line, or of a module by its forward."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if name_called(node) == name or name in ("forward", "__call__"):
            yield node


def _names_at(tree: ast.AST, line: int) -> list[str]:
    """Return the names that calls in a line are given."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    here = [call for call in calls if call.lineno <= line <= (call.end_lineno or 0)]
    # Of a call over several lines, as of main(), what is inside is what runs.
    inner = sorted(here, key=lambda call: (call.end_lineno or 0) - call.lineno)
    given = [arg for call in inner for arg in (*call.args, *(k.value for k in call.keywords))]
    return list(dict.fromkeys(name for arg in given for name in _names_in(arg)))


def _names_in(node: ast.AST | None) -> list[str]:
    """Return the variables in an expression, and the attributes of `self`, in their order."""
    if node is None:
        return []
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [ast.unparse(node) if node.value.id == "self" else node.value.id]
    return [name for inner in ast.iter_child_nodes(node) for name in _names_in(inner)]


def _last_made(tree: ast.AST, name: str, line: int) -> _Made | None:
    """Return the last statement above a line that gives a name its value."""
    made = [each for each, names in _assignments(tree) if each.lineno < line and name in names]
    return max(made, key=lambda each: each.lineno, default=None)


@lru_cache(maxsize=64)
def _assignments(tree: ast.AST) -> tuple[tuple[_Made, list[str]], ...]:
    """Return the statements that give names their values, with these; a file is read once."""
    every = (each for each in ast.walk(tree) if isinstance(each, ast.Assign | ast.For))
    return tuple((each, _names_set_by(each)) for each in every)


def _names_set_by(statement: _Made) -> list[str]:
    """Return the names that a statement gives values."""
    targets = [statement.target] if isinstance(statement, ast.For) else statement.targets
    return [name for target in targets for name in _names_in(target)]


def _value_of(statement: _Made) -> ast.expr:
    """Return what a statement takes its value from."""
    return statement.iter if isinstance(statement, ast.For) else statement.value


def _scales(statement: _Made) -> bool:
    """Say whether a statement multiplies, divides or converts what it is given."""
    nodes = list(ast.walk(statement.value)) if isinstance(statement, ast.Assign) else []
    called = (name_called(each) for each in nodes if isinstance(each, ast.Call))
    signs = (each.op for each in nodes if isinstance(each, ast.BinOp))
    return any(_CASTS.intersection(called)) or any(isinstance(s, _SCALES) for s in signs)


def _cuts(statement: _Made, tree: ast.AST) -> bool:
    """Say whether a statement takes some rows of what it is given, and not those of a batch."""
    if isinstance(statement, ast.For):
        return False
    nodes = list(ast.walk(statement.value))
    slices = (each.slice for each in nodes if isinstance(each, ast.Subscript))
    called = (name_called(each) for each in nodes if isinstance(each, ast.Call))
    rows = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in slices]
    batches = _names_of_loops(tree)
    parts = (each for each in rows if _takes_part(each) and batches.isdisjoint(_names_in(each)))
    return any(_SPLITS.intersection(called)) or any(True for _ in parts)


@lru_cache(maxsize=64)
def _names_of_loops(tree: ast.AST) -> frozenset[str]:
    """Return the variables of loops, and those that are made from them."""
    every = [(each, own, set(_names_in(_value_of(each)))) for each, own in _assignments(tree)]
    names = {name for each, own, _ in every if isinstance(each, ast.For) for name in own}
    for _ in range(_ROUNDS):
        names |= {name for _, own, used in every if used & names for name in own}
    return frozenset(names)


def _takes_part(index: ast.expr) -> bool:
    """Say whether an index takes several rows, not all and not one: `[:100]`, `[order]`."""
    if isinstance(index, ast.Slice):
        return index.lower is not None or index.upper is not None
    return isinstance(index, ast.Name | ast.Attribute | ast.UnaryOp | ast.Call | ast.BinOp)
