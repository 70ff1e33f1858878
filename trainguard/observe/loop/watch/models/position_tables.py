"""Watches modules that add a table of positions: whether any two places get different numbers."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Run, attempt
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.owners import words_in
from trainguard.observe.tools.user_line import caller

_NAMES = {"encoding", "pe", "pos", "position", "positional", "positions"}
_BATCH, _PLACES = 3, 5  # of what is asked
_MOST = 8  # modules that are asked


class PositionTables(Watcher):
    """
    The Probe event "one place": a module whose table gives all places the same numbers.

    It has a table with a name of positions, of many rows that differ, and adds something to each
    place of a sequence. measured: the places that were asked; label: the module.
    """

    makes = ("Probe:one place",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._asked: set[int] = set()
        self._found: list[Probe] = []

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Ask the parts of a module that learns, once."""
        given = self.recorder.given
        if id(module) in self._asked or not forward.gradients or not self.recorder.probe:
            return
        self._asked.add(id(module))
        if not any(each.dim() > 1 for each in given):
            return
        parts = [(name, part, _width_of(part)) for name, part in module.named_modules() if name]
        for name, part, width in [each for each in parts if each[2]][:_MOST]:
            call = CopyableCall(part, (torch.zeros(_BATCH, _PLACES, width),), (), ())
            if (told := attempt(self.recorder, call, partial(_ask, call.inputs[0]))) is None:
                continue
            self.looked.add("one place")
            if told:
                label = f"{type(part).__name__} {forward.module}.{name}"
                self._found.append(make_probe("one place", _PLACES, label=label, source=caller()))

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found


def _ask(zeros: torch.Tensor, run: Run) -> bool | None:
    """Say whether all places get one and the same addition; None of what adds nothing to each."""
    first, second = run((zeros,)), run((zeros + 1,))
    if len(first) != 1 or first[0].shape != zeros.shape or not bool(first[0].any()):
        return None
    risen = second[0] - first[0]  # as much everywhere: what is given may be multiplied by a number
    if not bool(risen.any()) or not torch.allclose(risen, risen[:1, :1, :1].expand_as(risen)):
        return None  # a table that is chosen from, or attended to
    return bool((first[0] == first[0][:1, :1]).all())


def _width_of(part: nn.Module) -> int:
    """Return the width of the table of positions that a module has itself; 0 where it has none."""
    own = [*part.named_buffers(recurse=False), *part.named_parameters(recurse=False)]
    for name, table in own:
        named = words_in(name) & _NAMES
        if named and table.dim() in (2, 3) and table.is_cpu and has_rows(table):
            rows = table.detach().flatten(0, -2)
            if len(rows) > _PLACES and bool((rows[:_PLACES] != rows[1 : _PLACES + 1]).any(1).all()):
                return int(table.shape[-1])
    return 0
