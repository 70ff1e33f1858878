"""What a training makes of what it has learned: targets that no loss function of torch is told."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.tools.fingerprint import fingerprint
from trainguard.observe.tools.user_line import foreign

_DRAWS = ("multinomial", "bernoulli", "normal", "poisson")  # from what may have been learned
_DEPTH = 3  # frames between the user's line and what torch calls for a decorated function


class Feedback:
    """
    Fingerprints, for each step, of what has no graph and may follow from what was learned.

    That are results of modules without gradients, but for those of a model that learns and is in
    evaluation mode; what is cut off a graph; and numbers by which others are drawn.

    refers: whether gradients were switched off between a call of a model and its backward pass:
    whatever is computed then may be a target, too.
    """

    refers = False

    def __init__(self) -> None:
        self.marks: list[int] = []
        self._learning: WeakSet[nn.Module] = WeakSet()
        self._has_output = False  # whether a model was called, and no backward pass since

    def install(self) -> None:
        """See all of it from now on: in a child, which ends with it."""
        torch.Tensor.detach = self._after_cut(torch.Tensor.detach)
        for name in _DRAWS:
            setattr(torch, name, self._before_draw(getattr(torch, name)))
        for kind in (torch.no_grad, torch.inference_mode):
            kind.__enter__ = self._before_entry(kind.__enter__)  # type: ignore[method-assign]

    def after_call(self, module: nn.Module, output: Any) -> None:
        """Take down what a module returned, where it may become a target."""
        if torch.is_grad_enabled():
            self._has_output = True
            self._learning.add(module)
        elif module.training or module not in self._learning:
            self._mark(*tensors_in(output))

    def before_backward(self) -> None:
        """Go on to the next step."""
        self._has_output = False

    def take(self) -> list[int]:
        """Return the fingerprints of this step."""
        taken, self.marks = self.marks, []
        return taken

    def _mark(self, *tensors: torch.Tensor) -> None:
        """Take down tensors."""
        self.marks.append(fingerprint(tensors))

    def _after_cut(self, detach: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `detach` that is seen where the user's code calls it on more than a number."""

        @wraps(detach)
        def wrapper(tensor: torch.Tensor) -> torch.Tensor:
            """Detach."""
            cut: torch.Tensor = detach(tensor)
            if tensor.requires_grad and tensor.numel() > 1 and _is_called_by_user(1):
                self._mark(cut)
            return cut

        return wrapper

    def _before_draw(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of torch that draws, of which it is seen by what numbers."""

        @wraps(draw)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            """Draw."""
            self._mark(*tensors_in((args, kwargs)))
            return draw(*args, **kwargs)

        return wrapper

    def _before_entry(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        """Return what switches gradients off, and is seen between an output and its backward."""

        @wraps(enter)
        def wrapper(context: Any) -> Any:
            """Switch them off."""
            if self._has_output and _is_called_by_user(_DEPTH):
                self.refers = True
            return enter(context)

        return wrapper


def _is_called_by_user(depth: int) -> bool:
    """Say whether one of the frames around a wrapper of ours is the user's own code."""
    frame = sys._getframe(2)  # noqa: SLF001 the one way to look at callers cheaply
    for _ in range(depth):
        if foreign(frame.f_code.co_filename):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
