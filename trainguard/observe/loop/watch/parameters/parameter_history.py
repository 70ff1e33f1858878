"""What a parameter was at first sight, and what has become of it; numbers may come later."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from trainguard.observe.loop.watch.parameters.thaws import Thaw
from trainguard.observe.loop.window import has_gradient


@dataclass(slots=True)
class ParameterHistory:
    """
    One parameter: what it was at first sight, and what has become of it.

    bits: its checksum at first sight; None where it has none, so that it counts as moved.
    required: the values that `requires_grad` had. groups: those of optimizers that held it.
    received: how many gradients each window has counted. left: the steps made when it was deleted.
    unheard: the attribute that was to freeze it, and that torch does not know; told: its checksum
    when that was first seen. defied: whether it has moved since.
    fed: whether it had a gradient other than zero at a look that found it where it was.
    drawn: whether it has the distribution that torch draws for a new layer, once that was asked.
    loaded: whether a state dict was loaded into it.
    """

    parameter: weakref.ref[torch.Tensor]
    key: int
    form: tuple[torch.dtype, torch.Size]
    bits: int | None = None
    name: str = ""
    module: str = ""
    required: set[bool] = field(default_factory=set)
    groups: set[tuple[int, int]] = field(default_factory=set)
    received: dict[int, int] = field(default_factory=dict)
    gradient: float = 0.0
    dead: int = 0
    orphan: bool = False
    called: bool = False
    moved: bool = False
    fed: bool = False
    moved_frozen: bool = False
    unheard: str = ""
    told: int | None = None
    defied: bool = False
    left: int | None = None
    drawn: bool | None = None
    loaded: bool = False


def set_bits(known: Sequence[ParameterHistory | Thaw], sums: list[int | None]) -> None:
    """Take down what parameters are at first sight, or when they are thawed."""
    for own, bits in zip(known, sums, strict=True):
        own.bits = bits


def set_told(known: Sequence[ParameterHistory], sums: list[int | None]) -> None:
    """Take down what parameters are when they are told to stay."""
    for seen, bits in zip(known, sums, strict=True):
        seen.told = bits


def take_moves(
    kept: list[tuple[ParameterHistory, bool, bool]], fed: set[int], sums: list[int | None]
) -> None:
    """
    Take down which parameters differ from what they were.

    kept: each with whether it has the form that it had, and whether it was told to stay.
    """
    for (seen, same_form, told), bits in zip(kept, sums, strict=True):
        seen.moved |= bits is None or not same_form or bits != seen.bits
        if not (seen.moved or seen.fed):
            parameter = seen.parameter()
            here = parameter is not None and parameter.is_cpu and has_gradient(parameter)
            seen.fed = here or id(seen) in fed
        seen.defied |= told and None not in (bits, seen.told) and bits != seen.told


def take_frozen(
    known: Sequence[ParameterHistory],
    before: list[int | None],
    places: list[int],
    after: list[int | None],
) -> None:
    """Take down which of some frozen parameters have other bits after a step than before it."""
    for place, bits in zip(places, after, strict=True):
        known[place].moved_frozen |= before[place] != bits
