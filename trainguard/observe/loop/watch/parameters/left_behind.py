"""Watches an only optimizer that goes on stepping while gradients reach nothing that it holds."""

from collections.abc import Iterable
from typing import Any

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Columns, Watcher, make_probe
from trainguard.observe.loop.window import Window, has_gradient

_LEAST = 20  # watched steps: a phase, and not a look at what gradients would be


class LeftBehind(Watcher):
    """
    The Probe event "left behind": an optimizer whose model was replaced after it had learned.

    measured: the steps in a row, up to the last one, in which nothing that it holds got a gradient,
    and parameters that no optimizer holds did; reference: the longest such row before; step: the
    first of them. label: one of those parameters.
    """

    makes = ("Probe:left behind",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._learned = False
        self._row, self._longest, self._step = 0, 0, 0
        self._label = ""

    def before_step(self, window: Window) -> Columns:
        """See whether the gradients of this step have gone to others."""
        if window.optimizer is None:
            return {}
        label = "" if any(window.received) else self._find_loose(window)
        self._learned = self._learned or any(window.received)
        if label and self._learned:
            self._step = self._step if self._row else self.recorder.steps
            self._row, self._label = self._row + 1, label
        else:
            self._longest, self._row = max(self._longest, self._row), 0
        return {}

    def finish(self) -> Iterable[Event]:
        """Return what was found, where it went on to the end."""
        if self._row >= _LEAST and self._row > self._longest:
            yield make_probe(
                "left behind", self._row, self._longest, step=self._step, label=self._label
            )

    def _find_loose(self, window: Window) -> str:
        """
        Return what got a gradient and is in no optimizer, where an only optimizer got none.

        A gradient that was given by hand, or is left from before, is one that it may step with.
        """
        stepping = (w.optimizer for w in self.recorder.windows if w.optimizer and w.index)
        optimizers = [optimizer for ref in stepping if (optimizer := ref())]
        if len(optimizers) != 1 or any(has_gradient(p) for p in window.parameters):
            return ""
        held = {id(p) for group in optimizers[0].param_groups for p in group["params"]}
        self.recorder.names.refresh()
        loose = (p for p in self.recorder.names.parameters() if id(p) not in held)
        found = next((p for p in loose if p.requires_grad and has_gradient(p)), None)
        return "" if found is None else self.recorder.names.parameter(found)
