"""Watches for losses without a graph that were told to require a gradient."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainguard.events.base import Event
from trainguard.observe.loop.watch.watcher import Watcher, make_probe
from trainguard.observe.loop.window import gradient_of
from trainguard.observe.tools.user_line import caller

_FEWEST = 8  # passes at one line: a batch without targets gives a constant now and then
_VALUES = 3  # different ones among the first: what is computed differs, a stand-in does not


@dataclass(slots=True)
class _LeafLine:
    """
    The passes that begin at one line: how many, of them how many at a leaf, and its values.

    gradients: what the leaf got. It is 1 unless somebody has said what comes from above, who reads
    what becomes of it.
    """

    step: int
    passes: int = 0
    leaves: int = 0
    values: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)


class LeafLosses(Watcher):
    """
    The Probe events "leaf loss": lines at which each pass backward begins at a leaf of its own.

    measured: the passes at the line; reference: those at other lines that reached an optimizer.
    A leaf that is there before its pass, has a hook or a gradient, or that an optimizer holds, is
    one that somebody learns or looks at.
    """

    makes = ("Probe:leaf loss",)
    relies_on = ("Gradients",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._lines: dict[str, _LeafLine] = {}
        self._now: tuple[_LeafLine, bool] | None = None
        self._latest: weakref.ref[torch.Tensor] | None = None
        self._reached = 0

    def before_backward(self, loss: torch.Tensor) -> None:
        """See whether there is anything behind what goes backward."""
        is_leaf = loss.grad_fn is None and self._is_fresh(loss)
        source = caller()
        line = self._lines.setdefault(source, _LeafLine(self.recorder.steps))
        self._now = (line, is_leaf) if source else None
        self._latest = weakref.ref(loss) if is_leaf else None

    def after_backward(self, loss: torch.Tensor) -> None:
        """Count the pass, by whether it gave anything to an optimizer."""
        reached = any(window.reached for window in self.recorder.windows)
        self._reached += reached
        if self._now is None:
            return
        line, is_leaf = self._now
        line.passes += 1
        line.leaves += is_leaf and not reached
        gradient = gradient_of(loss) if is_leaf and len(line.values) < _FEWEST else None
        if gradient is not None:
            line.values.append(loss.detach().clone())
            line.gradients.append(gradient.detach().clone())

    def finish(self) -> Iterable[Event]:
        """Return the lines of which no pass had a graph, whose values were computed."""
        self.looked |= {"leaf loss"} if self._reached else set()
        for source, line in self._lines.items():
            values = {float(value) for value in line.values}
            alone = all(float(gradient) == 1.0 for gradient in line.gradients)
            if alone and line.passes == line.leaves >= _FEWEST and len(values) >= _VALUES:
                yield make_probe(
                    "leaf loss", line.passes, self._reached, step=line.step, source=source
                )

    def _is_fresh(self, loss: torch.Tensor) -> bool:
        """Say whether a leaf is one number that was made for this pass, and for nothing else."""
        same = self._latest is not None and self._latest() is loss
        known = isinstance(loss, torch.nn.Parameter) or loss._backward_hooks  # noqa: SLF001
        held = any(loss is p for window in self.recorder.windows for p in window.parameters)
        return loss.numel() == 1 and gradient_of(loss) is None and not (same or known or held)
