"""An operator: a small function from a source to edits, each of them one mistake."""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from fnmatch import fnmatchcase

from trainguard.command.mutate.mistakes.source import Edit, SourceFile
from trainguard.core.errors import DeclarationError, did_you_mean

Mistake = Callable[[SourceFile], Iterator[Edit]]
_registered: dict[str, "Operator"] = {}


@dataclass(frozen=True, slots=True)
class Operator:
    """One registered kind of mistake."""

    key: str
    find: Mistake

    @property
    def title(self) -> str:
        """Return what the mistake breaks: the first line of its docstring."""
        return (inspect.getdoc(self.find) or self.key).splitlines()[0]

    @property
    def source(self) -> str:
        """Return where people made this mistake."""
        return (inspect.getdoc(self.find) or "").partition("Source:")[2].strip()


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    A file with one mistake in it.

    path: the file, from the root of the project. number: the how many-th of its operator there.
    """

    operator: Operator
    path: str
    number: int
    line: int
    text: bytes
    original: bytes

    @property
    def key(self) -> str:
        """Return the name under which its result is kept."""
        return f"{self.operator.key} {self.path}:{self.line} {self.number}"

    @property
    def diff(self) -> str:
        """Return how it differs from the file, as a patch."""
        old, new = (t.decode(errors="replace").splitlines() for t in (self.original, self.text))
        lines = [*unified_diff(old, new, f"a/{self.path}", f"b/{self.path}", lineterm="", n=1)]
        return "\n".join(lines)


def mistake(find: Mistake) -> Mistake:
    """Register a function as an operator, under the name of its file and its own."""
    key = f"{find.__module__.rpartition('.')[2]}.{find.__name__}"
    _registered[key] = Operator(key, find)
    return find


def operators(globs: Iterable[str] = ()) -> tuple[Operator, ...]:
    """Return the operators that globs name, all where there are none; raises for one of nothing."""
    # Here, so that they are registered, whoever asks first.
    from trainguard.command.mutate.mistakes import gradients, loading, losses, models, rates, states

    families = (gradients, losses, models, rates, loading, states)
    order = [module.__name__.rpartition(".")[2] for module in families]
    every = sorted(_registered.values(), key=lambda made: order.index(made.key.split(".")[0]))
    asked = tuple(globs) or ("*",)
    for glob in asked:
        if not any(fits(made, glob) for made in every):
            known = [name for made in every for name in (made.key, made.key.partition(".")[2])]
            near = did_you_mean(glob, known)
            hint = near if "Did you" in near else " `trainguard mutate --list` shows them all."
            raise DeclarationError(f"--operators {glob} matches no operator.{hint}")
    return tuple(made for made in every if any(fits(made, glob) for glob in asked))


def fits(made: Operator, glob: str) -> bool:
    """Say whether a glob names an operator, bare or with its family."""
    return any(fnmatchcase(name, glob) for name in (made.key, made.key.partition(".")[2]))


def mutants(
    data: bytes, path: str, chosen: Iterable[Operator], unread: list[str] | None = None
) -> Iterator[Mutant]:
    """
    Yield what each operator makes of a file; `unread` gets those that could not read its syntax.

    What is not Python any more, or the same program in other words, is no mutant.
    """
    source = SourceFile(data, path)
    seen = {ast.dump(source.tree)}
    for made in chosen:
        try:
            edits = list(made.find(source))
        except Exception:  # noqa: BLE001 a syntax that its author did not think of
            if unread is not None:
                unread.append(f"{made.key} cannot read {path}")
            continue
        for number, edit in enumerate(edits):
            text = source.apply(edit)
            tree = _parse(text)
            if tree is not None and tree not in seen:
                seen.add(tree)
                yield Mutant(made, path, number, source.line_of(edit), text, data)


def _parse(text: bytes) -> str | None:
    """Return the tree of a program as text, or nothing where it is none."""
    try:
        return ast.dump(ast.parse(text))
    except (SyntaxError, ValueError):
        return None
