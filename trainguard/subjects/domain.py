"""
A Domain says what one input of a subject may be: its shape in named dimensions, range and dtype.

Shapes are words: `"B T K"` has three named dimensions and `"B T 3"` two and a fixed one. The same
name is the same size everywhere in a declaration. A bound may be a dimension too: `"C-1"`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal, Protocol

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.subjects.subject import check_word, is_strategy

Kind = Literal["real", "integer", "choice", "mask", "bins"]
Bound = float | str
BATCH = "B"
_BOUND = re.compile(r"([A-Za-z_]\w*)\s*(?:-\s*(\d+))?")
Sizes = Mapping[str, int | tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Domain:
    """
    What one input may be. Made by `real`, `integer`, `choice`, `mask` and `bins`, not by hand.

    shape: the named or fixed dimensions; None for a choice that is no tensor.
    low, high: the range, both ends included; a dimension's name stands for its size.
    grad: whether a gradient flows to this input, so that it is judged.
    alive: the part of the range in which a gradient is promised; outside it may be zero.
    values: what a choice chooses from; for a mask, what marks (keep, padding).
    count: how many evenly spaced values `bins` has.
    """

    kind: Kind
    shape: tuple[str, ...] | None
    low: Bound = -inf
    high: Bound = inf
    grad: bool = False
    alive: tuple[float, float] | None = None
    values: tuple[object, ...] = ()
    count: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The named dimensions, in order."""
        return tuple(word for word in self.shape or () if not word.isdigit())

    def dims(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in numbers, for given sizes of the named dimensions."""
        return tuple(int(word) if word.isdigit() else sizes[word] for word in self.shape or ())

    def span(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """Return the two ends of the range, for given sizes of the named dimensions."""
        return _resolve_bound(self.low, sizes), _resolve_bound(self.high, sizes)

    def list_values(self, sizes: Mapping[str, int]) -> tuple[float, ...] | None:
        """Return every value that one element may take, or None for a continuum."""
        low, high = self.span(sizes)
        if self.kind == "integer":
            return tuple(float(value) for value in range(int(low), int(high) + 1))
        if self.kind == "bins":
            shares = [k / (self.count - 1) for k in range(self.count)]
            return tuple(low * (1 - share) + high * share for share in shares)
        return None


def real(
    shape: str,
    low: float,
    high: float,
    *,
    grad: bool = True,
    alive: tuple[float, float] | None = None,
) -> Domain:
    """
    Floating-point tensors with every element in [low, high].

    `grad=False` for a target. `alive=(a, b)` where the loss is flat on purpose outside [a, b], as
    behind a clamp: no gradient is promised there. Raises DeclarationError for a bad range or shape.
    """
    _check_range("real", low, high)
    if not (isfinite(low) and isfinite(high)):
        raise DeclarationError(
            f"tg.real has no finite range: low={low}, high={high}."
            " Give the largest values that the component may meet."
        )
    if alive is not None and not low <= alive[0] < alive[1] <= high:
        raise DeclarationError(
            f"tg.real(alive={alive}) does not lie inside [{low}, {high}]."
            " Name the part of the range in which a gradient is promised."
        )
    return Domain("real", _shape(shape), low, high, grad, alive)


def integer(shape: str, low: int | str, high: int | str) -> Domain:
    """Integer (int64) tensors with every element in [low, high]; a bound may be `"C-1"`."""
    for bound in (low, high):
        if isinstance(bound, float):
            raise DeclarationError(f"tg.integer got the bound {bound!r}. Give whole numbers.")
    _check_range("integer", low, high)
    return Domain("integer", _shape(shape), low, high)


def bins(shape: str, low: float, high: float, count: int) -> Domain:
    """
    Floating-point tensors whose elements take `count` evenly spaced values from low to high.

    This is what a quantised signal looks like after scaling: 8 bits are `bins("B T", -1, 1, 256)`.
    """
    _check_range("bins", low, high)
    if count < 2:
        raise DeclarationError(f"tg.bins got count={count}. Two values are the least there can be.")
    return Domain("bins", _shape(shape), low, high, count=count)


def choice(*values: object, shape: str | None = None) -> Domain:
    """One of a few values: a flag or a word, or with `shape` a tensor whose elements are drawn."""
    if not values:
        raise DeclarationError("tg.choice() has nothing to choose from. Give it a value or more.")
    first, *others = values
    dimensions = isinstance(first, str) and re.fullmatch(r"[A-Z]( [A-Z])*", first)
    if dimensions and others and _are_numbers(others):
        raise DeclarationError(
            f"tg.choice{values} would pass the word {first!r} itself. Where it is the shape of a"
            f" tensor, say so: tg.choice({', '.join(map(repr, others))}, shape={first!r})."
        )
    if shape is not None and not _are_numbers(values):
        raise DeclarationError(
            f"tg.choice{values} with shape={shape!r} would make a tensor of values that are no"
            " numbers. Leave the shape out to pass one of them as it is."
        )
    return Domain("choice", None if shape is None else _shape(shape), values=values)


def _are_numbers(values: Iterable[object]) -> bool:
    """Say whether values can be the elements of a tensor."""
    return all(isinstance(value, int | float) for value in values)


def mask(shape: str, *, padding: bool | int | float = False) -> Domain:
    """
    A mask over the last dimension of `shape`: some positions are kept, the rest is padding.

    `padding` is the value that marks a padded position: False for a mask of what is valid, True
    for PyTorch's `key_padding_mask`; with a number the mask is a float or integer tensor.
    """
    keep = type(padding)(not padding)
    return Domain("mask", _shape(shape), values=(keep, padding))


def _shape(text: str) -> tuple[str, ...]:
    """Split a shape into its words, each a name or a positive number."""
    if not isinstance(text, str):
        raise DeclarationError(
            f"A shape is a string of dimension names, and {text!r} is none."
            ' Write it like "B T K", or "B 3" with a fixed size.'
        )
    words = tuple(text.split())
    for word in words:
        if not (word.isidentifier() or (word.isdigit() and int(word) > 0)):
            raise DeclarationError(
                f"The shape {text!r} has the dimension {word!r}, which is neither a name nor a"
                ' size above zero. Write it like "B T K", or "B 3" with a fixed size.'
            )
    return words


def _check_range(kind: str, low: Bound, high: Bound) -> None:
    """Raise for a bound that is no number or size, and for a range that is empty."""
    for bound in (low, high):
        if isinstance(bound, str) and _BOUND.fullmatch(bound) is None:
            raise DeclarationError(
                f"tg.{kind} got the bound {bound!r}, which names no dimension."
                ' Give a number, or a size such as "C" or "C-1".'
            )
        if not isinstance(bound, int | float | str):
            raise DeclarationError(f"tg.{kind} got the bound {bound!r}. Give a number.")
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        swap = f" Swap them: tg.{kind}(..., {high}, {low})." if high < low else ""
        raise DeclarationError(
            f"tg.{kind} got an empty range: low={low} is not below high={high}.{swap}"
        )


def _resolve_bound(bound: Bound, sizes: Mapping[str, int]) -> float:
    """Return a bound as a number, with a dimension's name replaced by its size."""
    if not isinstance(bound, str):
        return float(bound)
    match = _BOUND.fullmatch(bound)
    assert match is not None, "bounds are checked when the domain is made"
    return float(sizes[match[1]] - int(match[2] or 0))


def tensors_of(inputs: Mapping[str, Any]) -> dict[str, Domain]:
    """Return the inputs that are tensors, in order of declaration."""
    tensors = {name: own for name, own in inputs.items() if isinstance(own, Domain)}
    return {name: domain for name, domain in tensors.items() if domain.shape is not None}


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
    if isinstance(value, tuple) and len(value) == 2 and _are_numbers(value):
        near = f' Did you mean tg.real("B", {value[0]!r}, {value[1]!r})?'
    raise DeclarationError(
        f"tg.{kind}({name}={value!r}) is neither a domain nor a Hypothesis strategy."
        f"{near if 'Did you' in near else f' Write tg.choice({value!r}) to fix it.'}"
    )
