"""Reads which keys the user's code asks dictionaries for, and which it reads or sets."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from trainguard.observe.tools.discarded import name_called, parse_file

_ASKED = {"get", "getattr", "pop", "setdefault"}
_WHOLE = {"items", "keys", "values"}  # methods that read all of a dictionary
_ALIKE = 0.8  # of the letters of two words: one is left out, or two are exchanged
_SHORTEST = 2  # letters of words of which one differs
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class AskedKey:
    """
    A key that a dictionary or a namespace is asked for, and that need not be there.

    name: of the variable or attribute; read: keys that the same function reads of it; text: as it
    is written.
    """

    key: str
    name: str
    read: frozenset[str]
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class KeysOfFile:
    """
    What a file does with keys.

    asked: of what may be without them. read: strings and attributes that may be keys, those asked
    for too; defined: keys that are set. whole: names of what is read without naming its keys.
    """

    asked: tuple[AskedKey, ...] = ()
    read: frozenset[str] = frozenset()
    defined: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def read_keys(file: str) -> KeysOfFile:
    """Return what a file does with keys, nothing where it cannot be read."""
    tree = parse_file(file)
    if tree is None:
        return KeysOfFile()
    nodes = list(ast.walk(tree))
    setting = [each for node in nodes for each in _list_defined(node)]
    defined = {each.value for each in setting if isinstance(each, ast.Constant)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    defined |= {_option(each.value) for each in setting if isinstance(each, ast.Constant)}
    held = {id(each) for each in setting}
    scopes = [node for node in nodes if isinstance(node, Scope)]
    return KeysOfFile(
        asked=tuple(asked for scope in scopes for asked in _list_asked(scope)),
        read=frozenset(word for node in nodes if id(node) not in held for word in _read(node)),
        defined=frozenset(each for each in defined if isinstance(each, str)),
        whole=frozenset(name for node in nodes for name in _read_whole(node)),
    )


def are_one_word(asked: str, there: str) -> bool:
    """Say whether two keys are likely meant to be one: a letter is off, or the order of words."""
    one, other = ([w.lower() for w in _WORDS.findall(each)] for each in (asked, there))
    if asked == there or not one or not other:
        return False
    if "".join(one) == "".join(other) or (len(one) > 1 and sorted(one) == sorted(other)):
        return True
    for few, many in ((one, other), (other, one)):
        if len(few) == 1 < len(many) and few[0] == "".join(word[0] for word in many):
            return True
    return len(one) == len(other) and all(map(_are_alike, one, other))


def _are_alike(one: str, other: str) -> bool:
    """Say whether two words differ by a letter, or by the order of two."""
    if one == other:
        return True
    if one.isdigit() or other.isdigit() or min(len(one), len(other)) < _SHORTEST:
        return False
    same = sum(a == b for a, b in zip(one, other, strict=False))
    if len(one) == len(other) and same == len(one) - 1:
        return True
    if abs(len(one) - len(other)) == 1:
        longer, shorter = sorted((one, other), key=len, reverse=True)
        return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))
    return SequenceMatcher(None, one, other).ratio() >= _ALIKE


def _list_asked(scope: Scope) -> Iterator[AskedKey]:
    """Yield what a function asks for, without those inside of it."""
    nodes = list(_nodes_of(scope))
    read: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            read.setdefault(_name_of(node.value), set()).add(_text_of(node.slice))
    asked = [(*_asks(node), node) for node in nodes]
    optional = {"", *(key for key, _, _ in asked)}
    for key, name, node in asked:
        if key and name:
            own = frozenset(read.get(name, ())) - optional
            yield AskedKey(key, name, own, node.lineno, ast.unparse(node))


def _nodes_of(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a function, or of a module outside of its functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, Scope):
            yield from _nodes_of(node)


def _asks(node: ast.expr) -> tuple[str, str]:
    """Return the key that an expression asks for, and of what: `x.get("a")`, `"a" in x`."""
    if isinstance(node, ast.Call):
        called, first = name_called(node), node.args[0] if node.args else None
        if called == "get" and isinstance(node.func, ast.Attribute) and first is not None:
            return _text_of(first), _name_of(node.func.value)
        if called in ("getattr", "hasattr") and len(node.args) > 1 and first is not None:
            return _text_of(node.args[1]), _name_of(first)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _text_of(node.left), _name_of(node.comparators[0])
    return "", ""


def _text_of(node: ast.expr) -> str:
    """Return the string that an expression is, or nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _name_of(node: ast.expr) -> str:
    """Return the name of a variable or an attribute, or nothing."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _list_defined(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the strings by which a node sets keys, and those that nobody reads."""
    if isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield node.slice
    elif isinstance(node, ast.Call) and name_called(node) == "add_argument":
        yield from node.args
        yield from (each.value for each in node.keywords if each.arg == "help")
    elif isinstance(node, ast.Expr):
        yield node.value


def _option(text: object) -> str:
    """Return the attribute that an option of a command line sets."""
    return text.lstrip("-").replace("-", "_") if isinstance(text, str) else ""


def _read(node: ast.AST) -> Iterator[str]:
    """Yield what a node reads that may be a key."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr


def _read_whole(node: ast.AST) -> Iterator[str]:
    """Yield the names of what is read key by key, without naming them."""
    if isinstance(node, ast.keyword) and node.arg is None:
        yield from _names_in(node.value)
    elif isinstance(node, ast.Dict):
        yield from (n for k, v in zip(node.keys, node.values, strict=True) if k is None
                    for n in _names_in(v))  # fmt: skip
    elif isinstance(node, ast.For):
        yield from _names_in(node.iter)
    elif isinstance(node, ast.DictComp):
        copies = isinstance(node.key, ast.Name)  # as it does that moves them to a device
        yield from () if copies else (n for g in node.generators for n in _names_in(g.iter))
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield from (name for each in node.generators for name in _names_in(each.iter))
    elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice):
        yield _name_of(node.value)
    elif isinstance(node, ast.Call):
        yield from (name for each in node.args for name in _whole_argument(each))
        if name_called(node) in _ASKED and not any(map(_text_of, node.args)):
            own = [node.func.value] if isinstance(node.func, ast.Attribute) else node.args[:1]
            yield from map(_name_of, own)


def _whole_argument(node: ast.expr) -> Iterator[str]:
    """Yield the name of what is handed on as `x.values()`, or `*x`."""
    if isinstance(node, ast.Starred):
        yield from _names_in(node.value)
    elif isinstance(node, ast.Call) and name_called(node) in _WHOLE:
        yield from _names_in(node.func)


def _names_in(node: ast.expr) -> Iterator[str]:
    """Yield the names of what an expression goes through: `x.items()`, `list(x)`, `y["x"]`."""
    if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and node.attr not in _WHOLE):
        yield _name_of(node)
    elif isinstance(node, ast.Subscript) and _text_of(node.slice):
        yield _text_of(node.slice)
    elif isinstance(node, ast.Call):
        called = [node.func] if name_called(node) in _WHOLE else []
        yield from (name for each in [*called, *node.args] for name in _names_in(each))
    else:
        parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        yield from (name for each in parts for name in _names_in(each))
