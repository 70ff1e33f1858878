"""What probes of a training pass share: when they are made, and on which pass."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.watch.models.module_copy import (
    CopyableCall,
    Run,
    attempt,
    difference,
    largest,
)
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Forward, Window
from trainguard.observe.tools.user_line import caller

_TRIES = 8
_NARROW = 2e-2  # of the outputs, in a dtype with few digits
_NARROW_TYPES = (torch.float16, torch.bfloat16)


class Seen(NamedTuple):
    """
    What was measured, what it is held against, and in which part of the module.

    probe, label, source: where they are not those of the watcher and of the pass. All that a look
    finds is in here: it is made in a child process, whose memory is lost.
    """

    measured: float
    reference: float
    part: str = ""
    probe: str = ""
    label: str = ""
    source: str = ""


class ModuleProbe(Watcher):
    """
    A watcher that tries something on the last pass that learned, after the second step.

    It is tried once; where a pass is not fit for it, the passes of a few more steps are looked at.
    Runs with several optimizers are left alone, unless `several` says that they need not be.
    """

    probe = ""
    several = False
    rounding = 1e-3  # of the outputs

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._last: tuple[Forward, CopyableCall, str] | None = None
        self._found: list[Probe] = []
        self._left = _TRIES if recorder.probe else 0

    @property
    def is_wanted(self) -> bool:
        """Whether something is still to be tried."""
        return self._left > 0

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the pass until the step is over."""
        if self.is_wanted and forward.gradients:
            self._last = (forward, CopyableCall.of(forward, module, inputs), caller(4))

    def after_step(self, window: Window) -> Columns:
        """Try it, where the pass was learned from."""
        last, self._last = self._last, None
        if not self.is_wanted:
            self.recorder.dismiss(self)
        if last is None or not self.is_wanted or not self.recorder.steps:
            return {}
        self._left -= 1
        if not last[0].learned:
            return {}
        others = [w for w in self.recorder.windows if w is not window and w.index]
        forward, call, source = last
        seen = None if others and not self.several else self._look_at_copy(call)
        if seen is not None:
            self._found.append(
                Probe(
                    probe=seen.probe or self.probe,
                    measured=seen.measured,
                    reference=seen.reference,
                    step=forward.step,
                    label=seen.label
                    or self.label(".".join(filter(None, (forward.module, seen.part)))),
                    source=seen.source or source,
                )
            )
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        self._last = None
        return self._found

    def _look_at_copy(self, call: CopyableCall) -> Seen | None:
        """Return what is seen on a copy, where the call is fit for it."""
        try:
            if not self.fits(call):
                return None
        except Exception:  # noqa: BLE001 inputs may be of classes that compare as they like
            return None
        self._left = 0
        seen, made = self.recorder.faults.look_apart(
            self.recorder.names.module(call.module),
            call.module,
            lambda: attempt(self.recorder, call, lambda run: self.look(call, run)),
        )
        self.looked |= {self.probe} if made else set()
        return Seen(*seen) if seen else None

    def fits(self, call: CopyableCall) -> bool:
        """Say whether a call is one that it can be tried on."""
        raise NotImplementedError

    def look(self, call: CopyableCall, run: Run) -> Seen | None:
        """Try it, and return what was measured where that says anything."""
        raise NotImplementedError

    def label(self, module: str) -> str:
        """Return what tells the probe apart."""
        return module

    def reference(self, call: CopyableCall, output: torch.Tensor) -> float:
        """Return the change of an output that is rounding."""
        kinds = {output.dtype, *(p.dtype for p in call.module.parameters())}
        narrow = call.casts or not kinds.isdisjoint(_NARROW_TYPES)
        return (_NARROW if narrow else self.rounding) * largest([output])


def steady(first: torch.Tensor, second: torch.Tensor | None, reference: float) -> bool:
    """Say whether the same input gives the same output, so that a change of it means something."""
    if second is None or not 0 < reference < float("inf"):
        return False
    return difference([first], [second]) <= reference / 10
