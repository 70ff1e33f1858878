"""Watches losses: what is handed to backward, and where the first value that is not finite was."""

from typing import Any

import torch
from torch import nn

from trainguard.observe.loop.deferred import Deferred
from trainguard.observe.loop.locate_nonfinite import Call, first_culprit
from trainguard.observe.loop.watch.watcher import Columns, Watcher
from trainguard.observe.loop.window import Forward, Window


class Losses(Watcher):
    """
    The columns loss and losses, and culprit where a loss is not finite.

    latest: the value last handed to backward, None where that was no single number.
    """

    makes = ("loss", "losses", "culprit")
    relies_on = ("Scaling", "Gradients")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.latest: torch.Tensor | float | None = None
        self._culprit = ""
        self._sound = True
        self._call: Call | None = None

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the call until the step is over: it may have to be looked at again."""
        if forward.gradients and self._sound:
            self._call = (module, inputs, forward.keywords)

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the value, and look for the culprit at the first one that is not finite."""
        self.latest = None
        if loss.numel() != 1:
            return
        value = self.recorder.scaling.value_of(loss)
        self.latest = value
        if value.device.type != "cpu":
            return
        self.latest = number = float(value)
        if number - number != 0 and self._sound:
            self._sound = False
            self._culprit = first_culprit(self.recorder, self._call)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Give the value to the optimizers whose parameters it reached, to all if to none."""
        if self.latest is None:
            return
        windows = self.recorder.windows
        reached = [w for w in windows if w.order and w.order[-1] == "backward" and not w.fresh]
        for window in reached or windows:
            window.add_loss(self.latest)

    def before_step(self, window: Window) -> Columns:
        """Return the values of this window; their sum is the loss of the step."""
        self._call = None
        if not window.losses:
            return {}
        columns: Columns = {"losses": tuple(window.losses)}
        if all(isinstance(value, float) for value in window.losses):
            columns["loss"] = sum(window.losses)
        else:
            each = torch.stack([torch.as_tensor(v).float().reshape(()) for v in window.losses])
            columns["loss"] = Deferred(each, sum)
        window.culprit, self._culprit = self._culprit, ""
        return columns
