"""Watches gradient scalers: what losses are scaled by, and which steps they skip."""

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.cuda.amp import common

from trainguard.observe.loop.watch.watcher import Columns, Watcher, shielded
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.patches import Patches, tell_after


class Scaling(Watcher):
    """The column scale, steps that were skipped, and the words "unscale" in the order."""

    makes = ("scale", "skipped", "order")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.meant: weakref.WeakSet[Any] = weakref.WeakSet()  # those that torch disables too
        self._scaled: weakref.ref[torch.Tensor] | None = None
        self._plain: torch.Tensor | None = None
        self._factor: torch.Tensor | float = 1.0
        self.current: torch.Tensor | float = 1.0  # of the latest loss handed to backward

    def install(self, patches: Patches) -> None:
        """Listen to the methods of every gradient scaler."""
        scaler = torch.amp.GradScaler
        patches.replace(common, "amp_definitely_not_available", self._look)
        patches.replace(scaler, "scale", tell_after(self._see_scaled))
        patches.replace(scaler, "unscale_", tell_after(self._see_unscaled))
        patches.replace(scaler, "step", self._step)

    def of(self, loss: torch.Tensor) -> torch.Tensor | float:
        """Return the factor that a loss was scaled by, 1 where it was not."""
        scaled = self._scaled() if self._scaled is not None else None
        return self._factor if scaled is loss else 1.0

    def value_of(self, loss: torch.Tensor) -> torch.Tensor:
        """Return a loss as it was before it was scaled, which may have overflowed it."""
        scaled = self._scaled() if self._scaled is not None else None
        return self._plain if scaled is loss and self._plain is not None else loss.detach()

    def at(self, window: Window) -> torch.Tensor | float:
        """Return the factor that the gradients of a window are still scaled by."""
        return 1.0 if window.unscaled else self.current

    def before_backward(self, loss: torch.Tensor) -> None:
        """Remember what the gradients of this backward will be scaled by."""
        self.current = self.of(loss)

    def before_step(self, window: Window) -> Columns:
        """Return the factor in force."""
        return {"scale": self.current}

    def _look(self, is_missing: Callable[[], bool]) -> Callable[[], bool]:
        """Return what a scaler calls that is meant to be enabled: it notes those that are not."""

        @wraps(is_missing)
        def wrapper() -> bool:
            """Say whether the device is missing."""
            missing = is_missing()
            if missing:  # nobody else has the scaler yet
                self._see_meant(sys._getframe(1).f_locals.get("self"))  # noqa: SLF001
            return missing

        return wrapper

    @shielded
    def _see_meant(self, scaler: Any) -> None:
        """Remember a scaler that torch disables."""
        if isinstance(scaler, torch.amp.GradScaler):
            self.meant.add(scaler)

    @shielded
    def _see_scaled(self, result: Any, scaler: Any, outputs: Any) -> None:
        """Remember which loss a `scale` has scaled, and by what."""
        if self.recorder.is_looking() and isinstance(result, torch.Tensor):
            self._note_scaled(scaler, outputs, result)

    @shielded
    def _see_unscaled(self, _: Any, scaler: Any, optimizer: Any) -> None:
        """Note in the optimizer's window what an `unscale_` did."""
        if self.recorder.is_looking() and scaler.is_enabled():
            self._note_unscaled(optimizer)

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `step` that records a skipped step where the optimizer made none."""

        @wraps(step)
        def wrapper(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            """Step the optimizer, unless gradients are not finite."""
            if not self.recorder.is_looking() or not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            begun = self._begin_step(optimizer)
            result = step(scaler, optimizer, *args, **kwargs)
            if begun is not None:
                self._end_step(*begun)
            return result

        return wrapper

    @shielded
    def _note_scaled(self, scaler: Any, outputs: torch.Tensor, result: torch.Tensor) -> None:
        """Remember which loss was scaled, and by what."""
        self._factor = _factor(scaler)
        if scaler.is_enabled():
            self.meant.add(scaler)
        self._scaled = weakref.ref(result)
        self._plain = outputs.detach()

    @shielded
    def _note_unscaled(self, optimizer: Any) -> None:
        """Remember that the gradients of an optimizer were unscaled."""
        window = self.recorder.window_of(_inner(optimizer))
        window.unscaled = True
        window.edit("unscale")

    @shielded
    def _begin_step(self, optimizer: Any) -> tuple[Window, int]:
        """See which step comes next; the optimizer tells of it, if it is not skipped."""
        window = self.recorder.window_of(_inner(optimizer))
        if not _unscales_inside(window):
            window.unscaled = True  # `step` unscales what nobody has unscaled before
        return window, window.index

    @shielded
    def _end_step(self, window: Window, before: int) -> None:
        """Record a step that was skipped: the optimizer has made none."""
        if window.index == before:  # the gradients that it would have been made with are there
            self.recorder.step_ends(window, self.recorder.step_begins(window), skipped=True)


def _factor(scaler: Any) -> torch.Tensor | float:
    """Return a scaler's factor; on an accelerator a copy, since it is updated in place."""
    factor = scaler._scale if scaler.is_enabled() else None  # noqa: SLF001 get_scale() would wait
    if factor is None:
        return 1.0
    return float(factor) if factor.device.type == "cpu" else factor.detach().clone()


def _inner(optimizer: Any) -> Any:
    """Return the optimizer of torch inside a wrapper such as Accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)


def _unscales_inside(window: Window) -> bool:
    """Say whether the optimizer takes scaled gradients and unscales them in its own kernel."""
    optimizer = window.optimizer() if window.optimizer is not None else None
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
