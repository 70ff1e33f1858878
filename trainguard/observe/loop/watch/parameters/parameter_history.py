"""What is remembered of one parameter while a run is recorded."""

import weakref
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class ParameterHistory:
    """
    One parameter: what it was at first sight, and what has become of it.

    bits: its checksum at first sight; None where it has none, so that it counts as moved.
    required: the values that `requires_grad` had. groups: those of optimizers that held it.
    received: how many gradients each window has counted. left: the steps made when it was deleted.
    unheard: the attribute that was to freeze it, and that torch does not know; told: its checksum
    when that was first seen. defied: whether it has moved since.
    """

    parameter: weakref.ref[torch.Tensor]
    key: int
    form: tuple[torch.dtype, torch.Size]
    bits: int | None
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
    moved_frozen: bool = False
    unheard: str = ""
    told: int | None = None
    defied: bool = False
    left: int | None = None
