"""What `trainguard memory` is asked: the command line, checked against the subject it is about."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from trainguard.command.memory.target import find_subject
from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.files import check_installed
from trainguard.core.settings import find_settings
from trainguard.report.json import check_apart
from trainguard.subjects import domain
from trainguard.subjects.budget import DEVICES, Budget
from trainguard.subjects.domain import BATCH, Domain
from trainguard.subjects.loop import Loop, Run, Script
from trainguard.subjects.loss import DTYPES, Loss
from trainguard.subjects.model import Model
from trainguard.subjects.subject import Subject, check_word, parameters

DOMAINS: Final = ("real", "integer", "bins", "choice", "mask")
_NEEDS: Final = {"png": "matplotlib", "html": "jinja2"}  # the extra `report` has them


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
    except (ImportError, ValueError):
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


@dataclass(frozen=True, kw_only=True)
class MemoryRequest:
    """What the command line asks for, in its own words where they are still to be read."""

    target: str
    args: Sequence[str] = ()
    at: Sequence[str] = ()
    inputs: Sequence[str] = ()
    loss: str | None = None
    optimizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    checkpoint: bool = False
    budget: int | None = None
    fit: Sequence[str] = ()
    timeout: float | None = None
    files: dict[str, Path] = field(default_factory=dict)  # {"html", "png", "snapshot", "json"}


def check(order: MemoryRequest) -> None:
    """Raise where a file is asked for that could not be written in the end."""
    check_apart(list(order.files.values()), [Path(order.target.partition("::")[0])])
    for kind, library in _NEEDS.items():
        if kind in order.files:
            check_installed(f"--{kind}", library)
    check_word("--device", [order.device or DEVICES[0]], DEVICES)
    if order.fit and order.budget is None:
        raise DeclarationError(
            f"--fit {order.fit[0]} asks what fits, and not into what. Add --budget 24GiB."
        )


def subject_of(order: MemoryRequest) -> Subject:
    """Return the subject that is asked about."""
    given = {
        "inputs": domains(order.inputs),
        "loss": order.loss,
        "at": sizes(order.at),
        "args": order.args,
    }
    subject = find_subject(order.target, given, find_settings(Path.cwd()))
    if isinstance(subject, Run):
        _check_run(order, subject)
    if order.args and not isinstance(subject, Script):
        raise DeclarationError(
            f"{order.target} is no script, and takes no arguments: {order.args[0]!r}. Leave it out."
        )
    return subject


def _check_run(order: MemoryRequest, subject: Run) -> None:
    """Raise for options that say nothing about a training that is run as it is."""
    given: dict[str, object] = {
        "input": order.inputs,
        "loss": order.loss,
        "optimizer": order.optimizer,
        "dtype": order.dtype,
        "checkpoint": order.checkpoint,
    }
    for option, value in given.items():
        if value:
            raise DeclarationError(
                f"--{option} says nothing about {subject.name}, a training that"
                " is run as it is. Declare its model, as a tg.Model."
            )
    known = parameters(subject.train) if isinstance(subject, Loop) else set()
    for name in sizes(order.at):
        if known is not None and name not in known:
            raise DeclarationError(
                f"--at {name}: {subject.name} takes no argument {name!r}."
                f"{did_you_mean(name, known)}"
            )


def survey_of(order: MemoryRequest, subject: Subject) -> Any:
    """Return what looks at the step; raises for options that the subject does not know."""
    budget = subject.memory_budget or Budget()
    at = {**budget.at, **sizes(order.at)}
    told = Budget(
        using=optimizer(order.optimizer) or budget.using,
        averaged=budget.averaged,
        device=order.device or budget.device,
    )
    from trainguard.observe.memory.step_profile import RunStepProfile, StepProfile  # late: torch

    if isinstance(subject, Run):
        return RunStepProfile(subject, told, at)
    assert isinstance(subject, Model | Loss)
    _check_sizes(subject, at)
    if order.checkpoint and getattr(subject, "checkpoint", None) is None:
        raise DeclarationError(
            f"--checkpoint: {subject.name} declares none. Say how: tg.Model(checkpoint=...)."
        )
    dtype = order.dtype or subject.dtypes[0]
    check_word("--dtype", [dtype], DTYPES)
    return StepProfile(subject, told, dtype, at, order.checkpoint)


def _check_sizes(subject: Model | Loss, at: dict[str, Any]) -> None:
    """Raise for a size of what is neither a dimension nor an argument, and for what is no size."""
    dimensions = _named_dimensions(subject)
    factory = subject.model if isinstance(subject, Model) else subject.function
    accepted = parameters(factory)
    for name, size in at.items():
        if name in dimensions and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise DeclarationError(
                f"--at {name}={size} is no size. Give a whole number above zero."
            )
        known = {*dimensions, *(accepted or ())}
        if name not in known and accepted is not None:
            raise DeclarationError(
                f"--at {name}={size}: {subject.name} has neither a dimension nor an argument"
                f" {name!r}.{did_you_mean(name, known)}"
            )


def _named_dimensions(subject: Model | Loss) -> list[str]:
    """Return the named dimensions of the inputs, the batch first."""
    names = dict.fromkeys(name for domain in subject.tensors.values() for name in domain.names)
    return sorted(names, key=lambda name: name != BATCH)


def dimensions_of(order: MemoryRequest, subject: Subject) -> list[str]:
    """
    Return the sizes to look for the largest of: those asked for, or the batch and the one other.

    Where there are several others, such as height and width, none of them grows alone.
    """
    if order.budget is None:
        return []
    known = _named_dimensions(subject) if isinstance(subject, Model | Loss) else []
    counts = {name: value for name, value in sizes(order.at).items() if type(value) is int}
    for name in order.fit:
        if name not in known and name not in counts:
            raise DeclarationError(
                f"--fit {name} is no size of {subject.name}.{did_you_mean(name, {*known, *counts})}"
            )
    others = [name for name in known if name != BATCH]
    batch = [name for name in known if name == BATCH]
    return list(order.fit) or [*batch, *(others if len(others) == 1 else ())]
