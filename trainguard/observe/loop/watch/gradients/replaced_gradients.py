"""Watches gradients that are not finite after a pass backward, and are when a step is made."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients.gradients import norms
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.user_line import caller

_STEPS = {0, 1, 2, 4, 8, 16, 32, 64}  # that are looked at


class ReplacedGradients(Watcher):
    """
    The Probe event "replaced": looks at which something has put numbers for what was none.

    measured: in how many steps, reference: of how many; label: "zero" where no gradient was left.
    Steps with scaled gradients are left alone: those overflow now and then, and are skipped.
    """

    makes = ("Probe:replaced",)
    relies_on = ("Scaling",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.count = 0
        self._looks = self._zeros = 0
        self._source = ""
        self._after: tuple[Window, torch.Tensor, str] | None = None

    @now_and_then
    def after_backward(self, loss: torch.Tensor) -> None:
        """Measure the gradients of the optimizer whose step is awaited."""
        self._after = None
        windows = [window for window in self.recorder.windows if window.reached]
        if self.recorder.steps in _STEPS and len(windows) == 1:
            pairs, scale = windows[0].gradients(), self.recorder.scaling.at(windows[0])
            if pairs and isinstance(scale, float) and scale == 1:
                self._after = windows[0], norms(pairs), caller()

    @now_and_then
    def before_step(self, window: Window) -> Columns:
        """Measure them again when the step is made."""
        after, self._after = self._after, None
        pairs = window.gradients() if after is not None and after[0] is window else []
        if after is not None and pairs:
            _, before, source = after
            ask = partial(self._take, source)
            self.recorder.reads.ask(self, [before.sum(), norms(pairs).sum()], ask)
        return {}

    def finish(self) -> Iterable[Event]:
        """Return in how many steps gradients were replaced."""
        self._after = None
        if self._looks:
            self.looked.add("replaced")
        if self.count:
            label = "zero" if self._zeros == self.count else ""
            yield make_probe("replaced", self.count, self._looks, label=label, source=self._source)

    def _take(self, source: str, totals: list[torch.Tensor]) -> None:
        """Count a step."""
        before, then = map(float, totals)
        self._looks += 1
        if before - before != 0 and then - then == 0:
            self.count += 1
            self._zeros += then == 0
            self._source = self._source or source
