"""The source of a training: its nodes are found, its segments replaced, the rest left as it is."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainguard.core.errors import DeclarationError

_BREAKS = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
LOOPS = (ast.For, ast.While, ast.AsyncFor)


@dataclass(frozen=True, slots=True)
class Edit:
    """One segment of a source, by its bytes, and the text that is put in its place."""

    start: int
    end: int
    text: str


class SourceFile:
    """A file of Python: its text as UTF-8, its tree, and where each node stands in the text."""

    def __init__(self, data: bytes, name: str = "<source>") -> None:
        """Read a file; raises DeclarationError for one that is not Python."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            self.bom, self.encoding = data.startswith(_BOM), encoding.removesuffix("-sig")
            self.text = data.removeprefix(_BOM).decode(self.encoding).encode()
            self.tree = ast.parse(self.text.decode())
        except (SyntaxError, ValueError, LookupError, RecursionError) as error:
            told = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else error
            raise DeclarationError(f"{name} is not Python: {told}.") from None
        self._lines = [0, *(found.end() for found in _BREAKS.finditer(self.text))]
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends."""
        begin: int = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return begin, end

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node, as it stands."""
        begin, end = self.span(node)
        return self.text[begin:end].decode()

    def apply(self, edit: Edit) -> bytes:
        """Return the file with one segment replaced, in its own encoding."""
        text = self.text[: edit.start] + edit.text.encode() + self.text[edit.end :]
        return _BOM * self.bom + text.decode().encode(self.encoding)

    def line_of(self, edit: Edit) -> int:
        """Return the line that an edit begins in."""
        return sum(1 for start in self._lines if start <= edit.start)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of functions and methods of these names, in the order of the text."""
        found = [n for n in self.nodes if isinstance(n, ast.Call) and name_of(n) in names]
        yield from sorted(found, key=self.span)

    def operations(self, kind: type[ast.operator]) -> Iterator[ast.BinOp]:
        """Yield the sums, quotients and so on of a file."""
        for node in self.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
                yield node

    def statements(self, *names: str) -> Iterator[ast.stmt]:
        """Yield the simple statements that hold a call of one of these names."""
        for call in self.calls(*names):
            statement = self.statement(call)
            if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign):
                yield statement

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements among which one stands, itself included."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def around(self, node: ast.AST, *kinds: type[ast.AST]) -> list[ast.AST]:
        """Return the nodes of these kinds that stand around one, the innermost first."""
        found = []
        while node in self.parents:
            node = self.parents[node]
            found += [node] * isinstance(node, kinds)
        return found

    def replace(self, node: ast.AST, text: str) -> Edit:
        """Put a text in the place of a node."""
        return Edit(*self.span(node), text)

    def drop(self, statement: ast.stmt) -> Edit:
        """Let a statement do nothing."""
        return self.replace(statement, "pass")

    def insert(self, statement: ast.stmt, text: str, *, after: bool = False) -> Edit:
        """Put a statement before or after another one, on the same line."""
        begin, end = self.span(statement)
        return Edit(end, end, f"; {text}") if after else Edit(begin, begin, f"{text}; ")

    def rotate(self, statements: Sequence[ast.stmt]) -> Edit:
        """Let the first of some neighbours come last; what stands between them stays there."""
        begin, end = self.span(statements[0])[0], self.span(statements[-1])[1]
        order = [*statements[1:], statements[0]]
        text, at = "", begin
        for slot, statement in zip(statements, order, strict=True):
            here, next_at = self.span(slot)
            text += self.text[at:here].decode() + self.segment(statement)
            at = next_at
        return Edit(begin, end, text)

    def set_keyword(self, call: ast.Call, name: str, text: str) -> Edit:
        """Give a keyword of a call this value, whether it has one or not."""
        given = keyword(call, name)
        if given is not None:
            return self.replace(given, text)
        end = self.span(call)[1] - 1
        arguments = [*call.args, *(k.value for k in call.keywords)]
        if not arguments:
            return Edit(end, end, f"{name}={text}")
        last = max(self.span(argument)[1] for argument in arguments)
        last += len(_closers(self.text[last:end]))
        return Edit(last, last, f", {name}={text}")

    def drop_keyword(self, call: ast.Call, name: str) -> Iterator[Edit]:
        """Leave a keyword out of a call, where it is given, with its comma."""
        at = next((k for k in call.keywords if k.arg == name), None)
        if at is None:
            return
        begin, end = self.span(at)
        before = self.text[self.span(call.func)[1] : begin].rstrip()
        comma = re.match(rb"\s*,[ \t]*", self.text[end:])
        if before.endswith(b",") and not comma:
            begin = self.text.rindex(b",", 0, begin)
        yield Edit(begin, end + (comma.end() if comma else 0), "")


def _closers(text: bytes) -> bytes:
    """Return the brackets that close right after an argument: it stands in them."""
    found = re.match(rb"[\s)]*\)", text)
    return found[0] if found else b""


def name_of(call: ast.Call) -> str:
    """Return the last name of what is called: `step` of `self.optimizer.step()`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword of a call, where it is given."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def receiver(call: ast.Call) -> ast.expr | None:
    """Return what a method is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def words_in(node: ast.AST) -> str:
    """Return all names and texts in a node, in small letters, to look for a word in."""
    found = [
        getattr(n, "id", "") or getattr(n, "attr", "") or str(getattr(n, "value", ""))
        for n in ast.walk(node)
        if isinstance(n, ast.Name | ast.Attribute | ast.Constant)
    ]
    return " ".join(found).lower()
