"""Check the sizes of the named dimensions of a declared model."""

from collections.abc import Mapping
from typing import Protocol

from trainguard.domain import Domain
from trainguard.fault import DeclarationError
from trainguard.subject import check_word

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
    bounds = {
        str(bound).split("-")[0].strip()
        for domain in model.tensors.values()
        for bound in (domain.low, domain.high)
        if isinstance(bound, str)
    }
    check_word("sizes", model.sizes, used | bounds)
    check_word("the bound of an input", bounds, used | set(model.sizes))
    for name, size in model.sizes.items():
        least, most = (size, size) if isinstance(size, int) else (*size, 0, 0)[:2]
        if not 1 <= least <= most:
            raise DeclarationError(
                f"tg.Model(sizes={{{name!r}: {size!r}}}) is no size."
                " Give a number above zero, or (least, most)."
            )
    check_word("longer", model.longer, used)
    for name, size in model.longer.items():
        declared = model.sizes.get(name, 1)
        most = declared if isinstance(declared, int) else declared[1]
        if not isinstance(size, int) or size <= most:
            raise DeclarationError(
                f"tg.Model(longer={{{name!r}: {size!r}}}) is not longer than sizes={{{name!r}:"
                f" {declared!r}}} allows. Give a larger size."
            )
