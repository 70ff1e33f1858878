"""
The first steps once more: what they would have learned at other rates, where they learned little.

A deputy is forked before the first step, and sleeps. Once the run has made as many steps as are
compared, or is over, it is known whether they have lowered the loss: then the deputy ends, having
cost nothing but its memory. Else it wakes, and its children make the same steps at other rates.
"""

import math
import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.deputy import Deputy, Mailbox, give_way
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.inquiry import Inquiry, agree
from trainguard.observe.loop.counterfactual.question import ModuleCall
from trainguard.observe.loop.counterfactual.rates import (
    FEWEST,
    STEPS,
    OtherRates,
    has_halved,
    mean_end,
)
from trainguard.observe.loop.counterfactual.witness import total
from trainguard.observe.loop.faults import describe
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Window, is_climbed
from trainguard.observe.tools.local_values import is_transforming
from trainguard.observe.tools.patches import Patches
from trainguard.observe.tools.user_line import caller

_MOST = 8.0  # seconds of the processor that it may take: six courses of sixty steps of small models
_WAIT = 16.0  # seconds by the clock that a run waits for it, once it is over


class FirstSteps(Watcher):
    """The WhatIf events of other rates."""

    makes = ("WhatIf",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._question = OtherRates()
        self._deputy: Deputy | None = None
        self._losses: list[float] = []  # of each step
        self._passes: list[float] = []  # of the step that is being made
        self._first = math.nan  # what was handed to the first backward
        self._source = ""
        self._is_decided = False
        self._told: list[WhatIf] = []

    def install(self, patches: Patches) -> None:
        """Wait for the first call of a model that learns, and leave no deputy behind."""
        if self.recorder.probe:
            self.recorder.before_pass.append(self._before_pass)
            give_way(patches, lambda: self.recorder.faults.call(self, self._stop))
            patches.on_undo(lambda: self.recorder.faults.put_back(self, self._stop_if_deaf))

    def _before_pass(self, module: nn.Module) -> None:
        """Send the deputy before the first step; in a child of it, return with other rates."""
        self.recorder.faults.call(self, self._send, module)

    def _send(self, module: nn.Module) -> None:
        """Send it, where what is about to be called learns, and questions are asked at all."""
        recorder = self.recorder
        learns = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if not recorder.steps and (not learns or recorder.is_bare(module) or is_transforming()):
            return
        recorder.before_pass.remove(self._before_pass)
        if recorder.steps or recorder.asks is None:
            return
        self._source = caller()
        if trouble := forking.obstacle():
            self._tell("given up", reason=trouble)
            return
        call = ModuleCall(recorder, module, (), {})
        self._deputy = Deputy.send(2 * _MOST, partial(self._stand_by, call), 0)

    def _stand_by(self, call: ModuleCall, _: Exit, mailbox: Mailbox) -> None:
        """Be the deputy: sleep, ask, and end."""
        try:
            mailbox.sleep()
            inquiry = Inquiry([self._question])
            inquiry.most = _MOST
            inquiry.begin(mailbox, float)
            if not inquiry.ask(call, [(self._question, f"{STEPS} steps")], asks_on=False):
                return
            inquiry.put(done=True)
        except BaseException as error:  # noqa: BLE001 the training is told, and goes on
            mailbox.put(fault=describe(error))
        os._exit(0)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        if self._deputy is None or self._is_decided:
            self.recorder.dismiss(self)
            return
        self._first = total(loss) if math.isnan(self._first) else self._first
        self._passes.append(total(self.recorder.scaling.value_of(loss)))

    def after_step(self, window: Window) -> Columns:
        """Decide once there are enough steps."""
        if self._passes and not self._is_decided:
            self._losses.append(sum(self._passes))
            self._passes = []
            if len(self._losses) >= STEPS or not math.isfinite(self._losses[-1]):
                self._decide()
        return {}

    def _decide(self) -> None:
        """Let the deputy end where the loss was halved, or cannot tell; else wake it."""
        self._is_decided = True
        if self._deputy is None:
            return
        windows = [window for window in self.recorder.windows if window.index]
        by_hand = self.recorder.hand.window is not None
        losses = self._losses
        if not windows or by_hand or is_climbed(windows):
            self._stop()
        elif len(losses) < FEWEST and all(map(math.isfinite, losses)):
            self._stop()
            self._tell("void", reason="too few steps were made")
        elif min(losses) < 0:
            self._stop()
            self._tell("void", reason="a loss is below zero")
        elif has_halved(losses):
            self._stop()
            self._tell("answered", measured=mean_end(losses), reference=losses[0])
        else:
            self._deputy.wake()

    def finish(self) -> Iterable[Event]:
        """Return what was answered."""
        if self.recorder.ended == "failed":  # whoever interrupts a run does not wait for it
            self._stop()
        if not self._is_decided:
            self._decide()
        deputy, self._deputy = self._deputy, None
        if deputy is not None:
            self._take(deputy.end(_MOST, _WAIT), deputy)
        return self._told

    def _take(self, words: Report, deputy: Deputy) -> None:
        """Take what the deputy has found, where its first step was the run's own."""
        if "fault" in words:
            self.recorder.faults.switch_off(self, words["fault"])
        rounds = words.get("rounds", ())
        if not rounds or "done" not in words:
            self._tell("given up", reason=words.get("trouble") or deputy.ending())
            return
        own = rounds[0].loss
        if own is not None and not agree(own, self._first):
            why = f"the first step as it is gave {own!r} in a child, and {self._first!r} here"
            self._tell("void", reason=why)
            return
        self._told += rounds[0].told
        if words["is_late"]:
            self._tell("given up", reason=f"{STEPS} steps would take too long")

    def _stop(self) -> None:
        """End the deputy."""
        self._is_decided = True
        if self._deputy is not None:
            self._deputy.end()
            self._deputy = None

    def _stop_if_deaf(self) -> None:
        """End the deputy of a recording that looks at nothing any more."""
        if self.recorder.patches.blind or self.recorder.faults.is_off(self):
            self._stop()

    def _tell(self, outcome: str, **columns: Any) -> None:
        """Take down what became of the question."""
        told = WhatIf(
            question=OtherRates.name,
            outcome=outcome,
            label=f"{STEPS} steps",
            source=self._source,
            **columns,
        )
        self._told.append(told)
