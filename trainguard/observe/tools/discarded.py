"""Finds lines of the user's code that compute something, and keep nothing of it."""

import ast
import linecache
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from trainguard.observe.tools.stores import reads_ever, stores_unread
from trainguard.observe.tools.user_line import asks_for_variables

# Of tensors and arrays: what they return is new, and they stay as they are. What a variable of a
# forward is called by may be something else: loggers have a log, too.
_METHODS = {
    *("abs", "add", "clamp", "clip", "contiguous", "cpu", "cuda", "cumsum", "detach", "div"),
    *("double", "expand", "flatten", "flip", "float", "half", "index_add", "index_copy"),
    *("index_fill", "index_select", "lerp", "log_softmax", "long", "masked_fill", "matmul", "mul"),
    *("neg", "permute", "pow", "scatter", "scatter_add", "sub", "to", "where"),
    *("relu", "reshape", "roll", "sigmoid", "softmax", "sqrt", "squeeze", "swapaxes", "tanh"),
    *("transpose", "tril", "triu", "unsqueeze"),
}
# What has one of these is a tensor, whatever else is not known of it.
_OF_TENSORS = {
    *("index_fill", "index_select", "log_softmax", "masked_fill", "permute", "scatter_add"),
    *("softmax", "unsqueeze"),
}
_FUNCTIONS = _METHODS | {
    *("cat", "chunk", "div", "dropout", "exp", "gather", "gelu", "layer_norm", "leaky_relu"),
    *("log", "normalize", "pad", "stack", "sub", "where"),
}
_LIBRARIES = (torch, functional)
_IN_PLACE = {"inplace", "out"}
_OF_MODELS = {"buffers", "named_buffers", "named_parameters", "parameters", "state_dict"}
# Layers that change nothing but their result; batch normalisation takes statistics down.
_LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.ELU,
    nn.GELU,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LeakyReLU,
    nn.ReLU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softmax,
    nn.Tanh,
)
# Of numbers: what pipelines overload (|, >>, &) may do something.
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
_COMPUTED = (torch.Tensor, np.ndarray, nn.Module, float, int)
_LARGEST = 1 << 20  # characters of a file
_A_TENSOR = torch.empty(0)  # what a variable of a forward is taken for
# A statement, its line, and whether nothing but a mistake may be meant: a variable that nothing
# ever reads may be left over.
Discarded = tuple[str, int, bool]


def find_discarded(
    code: CodeType, names: Mapping[str, Any], module: nn.Module | None = None
) -> Iterator[Discarded]:
    """
    Yield the statements of a function that compute something new, of which nothing is kept.

    `x.relu()` by itself, `loss + penalty` and `loss == loss + penalty`, `rate * 0.9` of a number,
    `y = x.relu()` where nothing reads y, what is set in a state_dict() that was just made, and a
    variable of a loop over parameters, `p = p - rate * p.grad`.
    names: the variables that it has, as far as they are known. module: what `self` is, in a
    forward, whose other variables are taken for tensors.
    """
    names = add_self(code, names, module)
    for statement in read_statements(code):
        if _sets_in_copy(statement):
            yield ast.unparse(statement).partition("\n")[0], statement.lineno, True
            continue
        # What stands at the left of a module may be there for a notebook to show it.
        if (
            isinstance(statement, ast.Expr)
            and statement.col_offset
            and _adds(statement.value, names)
        ):
            yield ast.unparse(statement), statement.lineno, True
            continue
        if _rebinds_a_parameter(code, statement):
            yield ast.unparse(statement), statement.lineno, True
            continue
        call = getattr(statement, "value", None)
        if not isinstance(call, ast.Call) or not _is_pure(call, names):
            continue
        if any(key.arg in _IN_PLACE for key in call.keywords):
            continue
        if _is_unread(code, statement):
            named = (each.id for each in getattr(statement, "targets", ()))
            certain = all(reads_ever(code, name) for name in named)
            yield ast.unparse(statement), statement.lineno, certain


def find_unread(
    code: CodeType, names: Mapping[str, Any], module: nn.Module | None = None
) -> Iterator[tuple[str, int, nn.Module | nn.Parameter]]:
    """
    Yield the layers and parameters of which a function makes something that nothing reads.

    With the statement and its line: `h = self.norm(x)`, where h is never read after it. names,
    module: as of find_discarded.
    """
    names = add_self(code, names, module)
    for statement in read_statements(code):
        if not isinstance(statement, ast.Assign):
            continue
        named = (find_object(node, names) for node in _names_in(statement.value))
        learned = [each for each in named if isinstance(each, nn.Module | nn.Parameter)]
        for each in learned if learned and _is_unread(code, statement) else ():
            yield ast.unparse(statement).partition("\n")[0], statement.lineno, each


def add_self(
    code: CodeType, names: Mapping[str, Any], module: nn.Module | None
) -> Mapping[str, Any]:
    """Return variables, and for a forward its module, and a tensor for each that is not known."""
    if module is None or not code.co_argcount:
        return names
    return {**dict.fromkeys(code.co_varnames, _A_TENSOR), **names, code.co_varnames[0]: module}


def _names_in(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the variables and attributes in an expression: `self.layer`, and no `self`."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield node
    if not isinstance(node, ast.Attribute) or isinstance(node.value, ast.Call):
        inner = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        yield from (name for each in inner for name in _names_in(each))


def _is_unread(code: CodeType, statement: ast.stmt) -> bool:
    """Say whether nothing reads the variables of a function in which a statement stores."""
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    targets = getattr(statement, "targets", [])
    named = [target.id for target in targets if isinstance(target, ast.Name)]
    if len(named) != len(targets):
        return False
    return all(
        _is_rebound(code, statement, name) or stores_unread(code, name, lines) for name in named
    )


def _rebinds_a_parameter(code: CodeType, statement: ast.stmt) -> bool:
    """Say whether the variable of a loop over parameters is set: `p = p - rate * p.grad`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return False
    named = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    over = [
        name_called(each)
        for loop in _loops_around(code, statement)
        for each in ast.walk(loop.iter)
        if isinstance(each, ast.Call)
    ]
    able = len(named) == len(statement.targets) and not _OF_MODELS.isdisjoint(over)
    return able and all(_is_rebound(code, statement, name) for name in named)


def _loops_around(code: CodeType, statement: ast.stmt) -> list[ast.For]:
    """Return the loop in whose body a statement stands, of a function or a script."""
    inside = code.co_name != "<module>"
    tree = find_function(code) if inside else parse_file(code.co_filename)
    loops = [each for each in ast.walk(tree) if isinstance(each, ast.For)] if tree else []
    return [loop for loop in loops if statement in loop.body]


def _is_rebound(code: CodeType, statement: ast.stmt, name: str) -> bool:
    """Say whether a statement stores in a variable of a loop that nothing else reads."""
    around = _loops_around(code, statement)
    is_of_loop = any(name in _loads(loop.target, ast.Store) for loop in around)
    tree = find_function(code) if code.co_name != "<module>" else parse_file(code.co_filename)
    every = _loads(tree, ast.Load) if tree is not None else []
    return is_of_loop and every.count(name) == _loads(statement, ast.Load).count(name)


def _loads(node: ast.AST, kind: type[ast.expr_context]) -> list[str]:
    """Return the variables that are read, or stored in, below a node."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, kind)]


def name_unread(frame: FrameType, method: str) -> str:
    """
    Return the variable in which a line stores what a method returns, if nothing reads it.

    A variable of a function's own, or of the script that runs: others may be read anywhere.
    """
    tree, code = parse_file(frame.f_code.co_filename), frame.f_code
    nodes = ast.walk(tree) if tree is not None and not asks_for_variables(code) else ()
    here = (each for each in nodes if isinstance(each, ast.Assign) and _is_at(each, frame.f_lineno))
    copied = (each for each in here if _copies(each.value, method))
    target = next((each.targets[0] for each in copied if len(each.targets) == 1), None)
    is_script = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    if not isinstance(target, ast.Name):
        return ""
    is_own = is_script or target.id in code.co_varnames + code.co_cellvars
    return target.id if is_own and not reads_ever(code, target.id) else ""


def _copies(value: ast.expr, method: str) -> bool:
    """Say whether a value is what a method returns, a deep copy of it, or a dict made from it."""
    if isinstance(value, ast.DictComp):
        value = value.generators[0].iter
    while isinstance(value, ast.Call) and (name := name_called(value)) != method:
        if name == "deepcopy" and value.args:
            value = value.args[0]
        elif name in ("copy", "items") and isinstance(value.func, ast.Attribute):
            value = value.func.value
        else:
            return False
    return isinstance(value, ast.Call)


def name_called(call: ast.Call) -> str:
    """Return the last name of what is called: that of a function, or of a method."""
    called = call.func
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _is_at(node: ast.stmt, line: int) -> bool:
    """Say whether a statement goes over a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_pure(call: ast.Call, names: Mapping[str, Any]) -> bool:
    """Say whether a call returns something, and does nothing else."""
    target = call.func
    if not isinstance(target, ast.Attribute):
        return False
    owner = find_object(target.value, names)
    if owner is None and isinstance(target.value, ast.Name) and target.value.id not in names:
        return target.attr in _OF_TENSORS
    if isinstance(owner, ModuleType):
        return owner in _LIBRARIES and target.attr in _FUNCTIONS
    if isinstance(owner, nn.Module):
        parts = vars(owner).get("_modules")  # a property may do anything
        layer = (
            parts.get(target.attr) if isinstance(parts, dict) else None
        )  # a scripted one is none
        return type(layer) in _LAYERS and not getattr(layer, "inplace", False)
    return isinstance(owner, torch.Tensor | np.ndarray) and target.attr in _METHODS


def _adds(node: ast.expr, names: Mapping[str, Any]) -> bool:
    """Say whether an expression computes with tensors, layers or numbers, or compares them."""
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        parts = [node.left, node.right]
    else:
        return False
    owned = [find_object(part, names) for part in parts]
    return any(isinstance(one, _COMPUTED) for one in owned) or any(
        _adds(part, names) for part in parts
    )


def find_object(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a name, or an attribute of one, is, and None where a look could do something."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = find_object(node.value, names)
    if isinstance(owner, torch.Tensor):
        return owner if node.attr in ("data", "grad") else None
    if isinstance(owner, nn.Module):
        tables = (vars(owner).get(name, {}) for name in ("_parameters", "_buffers", "_modules"))
        return next((table[node.attr] for table in tables if node.attr in table), None)
    return None


def _sets_in_copy(statement: ast.stmt) -> bool:
    """Say whether something is set in the dictionaries that a state_dict() has just made."""
    if isinstance(statement, ast.For):
        sets = [each for each in statement.body if isinstance(each, ast.Assign)]
        target = ast.unparse(statement.target)
        fresh = isinstance(statement.iter, ast.Subscript) and _is_state(statement.iter)
        own = [each for each in sets for one in each.targets if _base(one) == target]
        return fresh and bool(own) and len(own) == len(statement.body)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Subscript) and _is_state(target) for target in targets)


def _is_state(node: ast.expr) -> bool:
    """Say whether an expression looks something up in what a state_dict() returns."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "state_dict"
    )


def _base(target: ast.expr) -> str:
    """Return the variable in which something is looked up to be set."""
    return ast.unparse(target.value) if isinstance(target, ast.Subscript) else ""


@lru_cache(maxsize=256)
def read_statements(code: CodeType) -> tuple[ast.stmt, ...]:
    """Return the calls, assignments and loops of a function; nothing where it has no file."""
    kinds = ast.Expr | ast.Assign | ast.For
    return tuple(each for each in iterate_statements(code) if isinstance(each, kinds))


def iterate_statements(code: CodeType) -> Iterator[ast.stmt]:
    """Yield all statements of a function, or of a script, in their order, but for inner ones."""
    is_script = code.co_name == "<module>"
    tree = parse_file(code.co_filename) if is_script else find_function(code)
    yield from _statements_in(tree.body if tree is not None else [])


def find_function(code: CodeType) -> ast.FunctionDef | None:
    """Return a function as it is written; None where that cannot be read."""
    tree = parse_file(code.co_filename)
    nodes = ast.walk(tree) if tree is not None else ()
    made = (each for each in nodes if isinstance(each, ast.FunctionDef))
    return next((each for each in made if _makes(each, code.co_name, code.co_firstlineno)), None)


def _makes(node: ast.FunctionDef, name: str, first: int) -> bool:
    """Say whether a node is the function that begins at a line, its decorators counted."""
    return node.name == name and first in {
        node.lineno,
        *(each.lineno for each in node.decorator_list),
    }


def _statements_in(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, but for those of the functions and classes inside."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements_in(getattr(statement, part, []))


@lru_cache(maxsize=64)
def parse_file(file: str) -> ast.Module | None:
    """Return what a file says, None where it cannot be read."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if 0 < len(text) <= _LARGEST else None
    except (SyntaxError, ValueError, RecursionError):
        return None
