"""What builds a model, and what it is called with: values, and strategies to draw from."""

from collections.abc import Mapping
from typing import Any

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.subjects.subject import is_strategy, parameters, required_names


def check_factory(
    factory: Any,
    named: str,
    is_module: bool,
    arguments: Mapping[str, Any],
    vary: Mapping[str, Any],
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
