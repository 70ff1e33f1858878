"""Check the inputs and the sizes of their dimensions, which losses and models both declare."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.subjects.domain import Domain
from trainguard.subjects.subject import check_word, is_strategy

Sizes = Mapping[str, int | tuple[int, int]]


class Sized(Protocol):
    """What a declaration says about sizes."""

    @property
    def tensors(self) -> Mapping[str, Domain]:
        """The inputs that are tensors."""

    @property
    def sizes(self) -> Sizes:
        """The declared sizes."""

    @property
    def longer(self) -> Mapping[str, int]:
        """The sizes that must work too."""


def check_sizes(model: Sized) -> None:
    """Raise for sizes that no dimension can have, and for dimensions that no input has."""
    used = {name for domain in model.tensors.values() for name in domain.names}
    bounds = bounds_of(model.tensors)
    check_word("sizes", model.sizes, used | bounds)
    check_word("the bound of an input", bounds, used | set(model.sizes))
    check_possible("Model", model.sizes)
    check_word("longer", model.longer, used)
    for name, size in model.longer.items():
        declared = model.sizes.get(name, 1)
        most = declared if isinstance(declared, int) else declared[1]
        if not isinstance(size, int) or size <= most:
            raise DeclarationError(
                f"tg.Model(longer={{{name!r}: {size!r}}}) is not longer than sizes={{{name!r}:"
                f" {declared!r}}} allows. Give a larger size."
            )


def check_possible(kind: str, sizes: Sizes) -> None:
    """Raise for sizes that no dimension can have."""
    for name, size in sizes.items():
        least, most = (size, size) if isinstance(size, int) else (*size, 0, 0)[:2]
        if not 1 <= least <= most:
            raise DeclarationError(
                f"tg.{kind}(sizes={{{name!r}: {size!r}}}) is no size."
                " Give a number above zero, or (least, most)."
            )


def bounds_of(tensors: Mapping[str, Domain]) -> set[str]:
    """Return the dimensions whose sizes bound the values of an input."""
    return {
        str(bound).split("-")[0].strip()
        for domain in tensors.values()
        for bound in (domain.low, domain.high)
        if isinstance(bound, str)
    }


def check_drawn(kind: str, name: str, value: object, options: Iterable[str]) -> None:
    """Raise for an input that is not drawn; it may be one of some options, with a slip in it."""
    if isinstance(value, Domain) or is_strategy(value):
        return
    near = did_you_mean(name, options)
    raise DeclarationError(
        f"tg.{kind}({name}={value!r}) is neither a domain nor a Hypothesis strategy."
        f"{near if 'Did you' in near else f' Write tg.choice({value!r}) to fix it.'}"
    )
