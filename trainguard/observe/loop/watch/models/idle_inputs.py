"""Watches for one of several inputs that a model reads, and whose values change nothing."""

import dis
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.models.module_copy import CopyableCall, Inputs, Run, difference
from trainguard.observe.loop.watch.models.probe import ModuleProbe, Seen
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.user_line import forward_of

_FROM = 40  # steps: what begins at zero, as gates and adapters do, has left it by then
_LEAST_ROWS = 4
_LARGEST = 2**24  # elements of an input
_SEEDS = (0, 1, 2)  # conditions are left out at random


@dataclass(frozen=True, slots=True)
class _TrainingCall(CopyableCall):
    """
    A call of a copy as it was made: in the modes of its modules, and by a known seed.

    What the copy keeps of the call is returned too: labels may go into a loss that is kept, and
    the numbers of samples into a memory of them.
    """

    modes: list[bool] = field(default_factory=list)
    seed: list[int] = field(default_factory=list)

    def call_copy(self, module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        """Call the copy, and return what comes out and what it keeps."""
        for part, mode in zip(module.modules(), self.modes, strict=True):
            part.training = mode
        torch.manual_seed(self.seed[-1])
        random.seed(self.seed[-1])
        np.random.seed(self.seed[-1])
        made = self.outputs(module, inputs)  # lengths, too: they may be all that an input changes
        kept = [t for part in module.modules() for t in tensors_in(_kept_by(part))]
        return [_as_real(t.detach()).clone() for t in (*made, *kept)]


class IdleInputs(ModuleProbe):
    """The Probe event "idle": an input that the code reads is edited, and nothing else changes."""

    makes = ("Probe:idle",)
    relies_on = ("Forwards",)

    probe = "idle"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._rows: set[int] = set()  # of the outputs of the pass
        self._places: list[int] = []  # of inputs that could change something

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the pass, once there were enough steps, and for how many samples it was."""
        if self.recorder.steps < _FROM or not self.is_wanted:
            return
        super().forward(forward, module, inputs, output)
        self._rows = {len(tensor) for tensor in tensors_in(output) if tensor.dim()}

    def fits(self, call: CopyableCall) -> bool:
        """Say whether there are several inputs, and one that could change something."""
        tensors = [entry for entry in call.inputs if isinstance(entry, torch.Tensor)]
        self._places = [
            place
            for place, entry in enumerate(call.inputs)
            if isinstance(entry, torch.Tensor) and entry.dim() and len(entry) in self._rows
            if _varies(entry)
        ]
        return len(tensors) > 1 and bool(self._places)

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Edit one input after the other, and name the first one that the code reads in vain."""
        assert isinstance(call, _TrainingCall)
        names = dict(enumerate(_names_of(call)))
        for place in self._places:
            if names.get(place) and self._is_idle(call, run, place):
                return Seen(0.0, 1.0, names[place])
        return None

    def _is_idle(self, call: _TrainingCall, run: Run, place: int) -> bool:
        """Say whether an input changes nothing, to the last bit, by whatever seed."""
        entry = call.inputs[place].detach()
        for seed in _SEEDS:
            call.seed[:] = [seed]
            first, again = run(call.inputs), run(call.inputs)
            if not first or difference(first, again) != 0:
                return False  # also where something is no number
            for other in (entry.roll(1, 0), entry.flatten().flip(0).reshape(entry.shape)):
                inputs = (*call.inputs[:place], other, *call.inputs[place + 1 :])
                if difference(first, run(inputs)) != 0:
                    return False
        return True

    def _look_at_copy(self, call: CopyableCall) -> Seen | None:
        """Return what is seen on a copy that is called as the module was."""
        modes = [part.training for part in call.module.modules()]
        parts = call.module, call.inputs, call.keywords, call.casts
        return super()._look_at_copy(_TrainingCall(*parts, modes))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with both parts of its complex numbers, where it has any."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _kept_by(module: nn.Module) -> list[Any]:
    """Return what a module holds beside its parameters and parts."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [*own.values(), *module._buffers.values()]  # noqa: SLF001 torch has no other name


def _varies(entry: torch.Tensor) -> bool:
    """Say whether the rows of an input differ."""
    if len(entry) < _LEAST_ROWS or entry.numel() > _LARGEST or entry.layout != torch.strided:
        return False
    return bool((entry[1:] != entry[:1]).any())


def _names_of(call: CopyableCall) -> Iterator[str]:
    """Yield the names of the inputs, "" for one that the code of the forward never reads."""
    forward = inspect.unwrap(forward_of(call.module))
    known = list(inspect.signature(forward).parameters.values())[1:]
    read = set(_read_by(forward.__code__))
    positional = len(call.inputs) - len(call.keywords)
    names = [p.name for p in known if p.kind is not p.VAR_POSITIONAL][:positional]
    for name in [*names, *call.keywords]:
        yield name if name in read else ""


def _read_by(code: Any) -> Iterator[str]:
    """Yield the names of variables that a function reads."""
    for instruction in dis.get_instructions(code):
        if "LOAD" in instruction.opname:
            names = instruction.argval
            yield from names if isinstance(names, tuple) else (str(names),)
