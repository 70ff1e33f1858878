"""Passes in a row from which nothing is learned, and what they leave behind."""

import weakref
from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.alike_samples import Number
from trainguard.observe.loop.mixed_terms import MixedTerms
from trainguard.observe.loop.window import Forward

_COMPARED = 8  # passes of an evaluation between which buffers and parameters are compared


@dataclass(slots=True)
class PassState:
    """
    What a pass must not change: versions of parameters and sums of buffers, by their names.

    away: sums of buffers on an accelerator, in the order of their names.
    """

    numbers: dict[str, float]
    names: tuple[str, ...] = ()
    away: torch.Tensor | None = None


@dataclass(slots=True)
class PassSegment:
    """
    Passes in a row of one module from which nothing is learned.

    count: how many values loss functions returned, summed in total. weighted: the sum of those with
    known samples, each times these. reductions: by what they were reduced.
    idle: whether it has a graph that no backward reached.
    touched: what was changed, and of buffers on an accelerator whether they were.
    mixed: the same as the terms of the training's loss, where that is known to have several.
    settled: whether it is known what of that was still so when the next training pass began.
    undone: what was not, by then.
    given: the input of the latest pass, or what it is a view of, and where it lies in that;
    repeats: how many passes had that of the one before.
    """

    module: weakref.ref[nn.Module]
    first: Forward
    idle: bool = False
    passes: int = 0
    repeats: int = 0
    given: weakref.ref[torch.Tensor] | None = None
    part: tuple[Any, ...] = ()
    state: PassState | None = None
    touched: set[str] = field(default_factory=set)
    touched_away: torch.Tensor | None = None
    settled: bool = False
    undone: set[str] = field(default_factory=set)
    undone_away: torch.Tensor | None = None
    count: int = 0
    total: Number = 0.0
    last: Number = nan
    weighted: Number = 0.0
    sizes: list[int] = field(default_factory=list)
    reductions: set[str] = field(default_factory=set)
    mixed: MixedTerms | None = None

    def begin(self, given: list[torch.Tensor]) -> None:
        """Count a pass, and whether it has the input of the one before."""
        self.passes += 1
        held, part = _whole_of(given[0]) if given else (None, ())
        same = held is not None and self.given is not None and self.given() is held
        self.repeats += same and part == self.part
        self.given, self.part = (None if held is None else weakref.ref(held)), part

    def add(self, value: Number) -> None:
        """Add what a loss function returned."""
        self.count += 1
        self.last = value if isinstance(value, float) else value.double()
        self.total = self.total + self.last

    def compare(self, state: PassState) -> None:
        """Note what differs from the state after the pass before."""
        was, self.state = self.state or state, state
        own = was.numbers
        self.touched |= {name for name in state.numbers if state.numbers[name] != own.get(name)}
        if state.names != was.names:
            self.touched |= {*state.names} - {*was.names}
        elif state.away is not None:
            changed: Any = state.away != was.away
            before = self.touched_away
            self.touched_away = changed if before is None else before | changed

    @property
    def goes_on(self) -> bool:
        """Whether the state after its next pass is of interest, so that the last one is known."""
        few = self.state is not None and 0 < len(self.state.names) <= _COMPARED
        return self.passes < _COMPARED or bool(self.touched) or few

    def settle(self, state: PassState) -> None:
        """Keep of what was changed what is still as the last pass left it."""
        if self.state is None or not self.goes_on or state.names != self.state.names:
            return
        own, away = self.state.numbers, self.touched_away
        self.undone = {name for name in self.touched if state.numbers.get(name) != own.get(name)}
        self.touched -= self.undone
        if away is not None and state.away is not None:
            same: Any = state.away == self.state.away
            self.touched_away, self.undone_away = away & same, away & ~same
        self.settled = True


def _whole_of(given: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """Return what a tensor is a view of, and which part of that it is; else itself."""
    base = given._base if given.layout is torch.strided and not given.is_nested else None  # noqa: SLF001
    if base is None:
        return given, ()
    return base, (given.storage_offset(), tuple(given.shape), given.stride())
