"""The words of the command line, made into values: sizes, domains, optimizers."""

import ast
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.subjects import domain
from trainguard.subjects.domain import Domain

DOMAINS: Final = ("real", "integer", "bins", "choice", "mask")


def sizes(words: Sequence[str]) -> dict[str, Any]:
    """Return {name: value} of `--at`: whole numbers, other literals, and words as they are."""
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise DeclarationError(f"--at {word!r} says no size. Write --at T=1024.")
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name] = value
    return given


def domains(words: Sequence[str]) -> dict[str, Domain]:
    """Return {name: domain} of `--input`, each written as in a declaration."""
    given = {}
    for word in words:
        name, equals, told = word.partition("=")
        if not equals or not name.isidentifier():
            raise DeclarationError(
                f"--input {word!r} declares no input. Write --input 'x=real(\"B 16\", -1, 1)'."
            )
        kind, args, keywords = _call("--input", word, told.removeprefix("tg."))
        if kind not in DOMAINS:
            raise DeclarationError(
                f"--input {word!r} has no domain {kind!r}.{did_you_mean(kind, DOMAINS)}"
            )
        try:
            given[name] = getattr(domain, kind)(*args, **keywords)
        except TypeError as error:
            raise DeclarationError(
                f"--input {word!r} cannot be: {error}. Write it as in a guard file."
            ) from None
        if given[name].shape is None:
            raise DeclarationError(f"--input {word!r} is no tensor. Give it a shape.")
    return given


def optimizer(word: str | None) -> Callable[..., Any] | None:
    """Return what makes the optimizer of `--optimizer`: `SGD`, `SGD(momentum=0.9)`, `pkg:Lion`."""
    if word is None:
        return None
    home, colon, told = word.rpartition(":")
    called = told if told.endswith(")") else f"{told}()"
    name, args, keywords = _call("--optimizer", word, called)
    try:
        module = import_module(home if colon else "torch.optim")
    except ImportError:
        raise DeclarationError(f"--optimizer {word!r}: there is no module {home!r}.") from None
    made = getattr(module, name, None)
    if not callable(made):
        known = [key for key in vars(module) if key[:1].isupper()]
        raise DeclarationError(
            f"--optimizer {word!r}: {module.__name__} has no {name!r}.{did_you_mean(name, known)}"
        )
    if args:
        raise DeclarationError(f"--optimizer {word!r} gives no names. Write SGD(momentum=0.9).")
    return partial(made, **keywords)


def _call(option: str, word: str, text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name, the arguments and the keywords of a call that is written out."""
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            keywords = {pair.arg or "": ast.literal_eval(pair.value) for pair in node.keywords}
            return node.func.id, [ast.literal_eval(value) for value in node.args], keywords
    except (SyntaxError, ValueError):
        pass  # told below, as what is no call is
    way = "SGD(momentum=0.9)" if option == "--optimizer" else "'x=real(\"B 16\", -1, 1)'"
    raise DeclarationError(f"{option} {word!r} cannot be read. Write {option} {way}.")
