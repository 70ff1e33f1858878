"""What the `forward` of a declared model is called with, and what is left for its loss."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.subjects.domain import Domain, check_drawn
from trainguard.subjects.subject import is_strategy, parameters, required_names

_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


class DeclaredModel(Protocol):
    """What a declaration says that matters here."""

    @property
    def name(self) -> str:
        """What reports call the model."""

    @property
    def model(self) -> Any:
        """The module, or the factory of one."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The declared inputs, those of the loss included."""

    @property
    def tensors(self) -> Mapping[str, Domain]:
        """The inputs that are tensors."""

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The declared loss."""


def forward_parameters(model: Any) -> list[inspect.Parameter] | None:
    """Return what `forward` of a module or of a class of modules takes; None where unknown."""
    forward = getattr(model, "forward", None)
    if forward is None:
        return None
    try:
        accepted = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        return None
    return accepted[1:] if inspect.isclass(model) else accepted


def forward_inputs(model: Any, loss: Callable[..., Any] | None, names: Iterable[str]) -> set[str]:
    """
    Return which of the declared inputs `forward` is called with; the rest is for the loss.

    Where `forward` takes any keyword, what the loss names is for the loss alone.
    """
    accepted = forward_parameters(model)
    own = {p.name for p in accepted or () if p.kind not in _ANY}
    anything = accepted is None or any(p.kind is p.VAR_KEYWORD for p in accepted)
    of_loss = set() if loss is None else parameters(loss) or set()
    return {name for name in names if name in own or (anything and name not in of_loss)}


def refusal(model: DeclaredModel, built: Any) -> tuple[str, str] | None:
    """
    Say what is wrong between the declared inputs and what `forward` and the loss take.

    The answer is a sentence without a full stop and the way out; None where nothing is wrong.
    """
    accepted = forward_parameters(built)
    if accepted is None:
        return None
    named = [p for p in accepted if p.kind not in _ANY]
    by_loss = set() if model.loss is None else parameters(model.loss)
    given = forward_inputs(built, model.loss, model.inputs)
    for name in model.inputs:
        if name not in given and by_loss is not None and name not in by_loss:
            if any(p.kind is p.VAR_POSITIONAL for p in accepted):
                continue
            known = {p.name for p in named} | by_loss
            return f"{model.name} takes no input {name!r}", did_you_mean(name, known).strip()
    for p in named:
        if p.default is p.empty and p.name not in model.inputs:
            return (
                f"forward of {model.name} needs an input {p.name!r}, which tg.Model is not told of",
                f"Declare it: {p.name}=tg.real(...).",
            )
    return None


def check_inputs(model: DeclaredModel, keywords: set[str], options: set[str]) -> None:
    """Raise for inputs that nothing takes, that are no domains, and that are not declared."""
    for name, domain in model.inputs.items():
        check_drawn("Model", name, domain, options if name in keywords else ())
    wrong = refusal(model, model.model) if callable(getattr(model.model, "forward", None)) else None
    if wrong is not None:
        raise DeclarationError(f"{wrong[0]}. {wrong[1]}")
    if not model.tensors:
        raise DeclarationError(
            f"tg.Model({model.name}) declares no input that is a tensor, so it cannot be called."
            ' Declare what forward takes, such as x=tg.real("B 16", -1, 1).'
        )
    needed = set() if model.loss is None else _needed_by_loss(model.loss)
    for name in sorted(needed - set(model.inputs)):
        raise DeclarationError(
            f"The loss of {model.name} needs {name!r}, which tg.Model is not told of."
            f' Declare it: {name}=tg.real(...), or tg.integer("B", 0, 9).'
        )


def _needed_by_loss(loss: Callable[..., Any]) -> set[str]:
    """Return the names that a loss cannot be called without, its first one, the output, apart."""
    target = getattr(loss, "forward", loss)
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return set()
    return required_names(loss) - set(names[:1])


def check_factory(
    factory: Any, named: str, is_module: bool, arguments: Mapping[str, Any], vary: Mapping[str, Any]
) -> None:
    """Raise for arguments of what is no factory, that it does not take, or that are not drawn."""
    given = (*vary, *arguments)
    if given and is_module:
        raise DeclarationError(
            f"tg.Model({named}) is a module, which takes no argument {given[0]!r} any more."
            " Declare its class, or a function that builds it."
        )
    accepted = None if is_module else parameters(factory)
    for name in given:
        if accepted is not None and name not in accepted:
            raise DeclarationError(
                f"{named} takes no argument {name!r}.{did_you_mean(name, accepted)}"
            )
    for name, drawn in vary.items():
        if not is_strategy(drawn):
            raise DeclarationError(
                f"tg.Model(vary={{{name!r}: {drawn!r}}}) is no Hypothesis strategy."
                f" Put a fixed value into arguments={{{name!r}: ...}}."
            )
        if name in arguments:
            raise DeclarationError(
                f"tg.Model has {name!r} both in vary and in arguments. Keep one of them."
            )
    missing = set() if is_module else required_names(factory) - set(given) - {"seed"}
    for name in sorted(missing):
        raise DeclarationError(
            f"tg.Model({named}) lacks {name!r}, which {named} cannot be built without."
            f" Give it in arguments={{{name!r}: ...}}."
        )
