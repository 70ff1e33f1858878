"""Accumulation: whether micro-batches weigh as one batch of them all would weigh them."""

import math
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainguard.observe.loop.counterfactual.batch_parts import (
    BatchDivided,
    PartsWitness,
    count_drawn,
    cut,
)
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall
from trainguard.observe.loop.counterfactual.replay import Rewound, variables
from trainguard.observe.loop.counterfactual.witness import Numbers, read_streams_at, sketch
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.gradients.autograd_graph import last_factor
from trainguard.observe.loop.window import Forward

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_MOST_PASSES = 16  # micro-batches: each is made three times
_WINDOWS = 3  # the one that was begun when the process forked, that of the whole, that of parts
_NEAR, _FINE = 1e-3, 1e-5  # of a gradient, where so much of a loss is rounding
_UNTOLD = 0.1  # of a difference that weights leave unexplained: negatives of the batch leave most
_NEAR_WEIGHT = 2e-3  # of the weights' mean, which is 1; that of roots of means is farther from it


class BatchAccumulated(BatchDivided):
    """
    A window is made of one batch again and again, and then one of its parts in turn.

    Where each part weighs as much as the batch weighs it, both have the same gradient: that of one
    batch. Where they have not, those weights are looked for that give the parts the gradient of the
    whole. measured: how far both are apart, as a share; reference: how many passes a window has;
    numbers: what the loss is multiplied by (nan where that may be the number of samples), and the
    weights. Void where no weights explain it: then the samples of a batch depend on each other.
    """

    name = "batch accumulated"

    def fits(self, call: ModuleCall) -> str:
        """Ask where one optimizer learns from several batches for each step, which have parts."""
        if not 1 < self.passes <= _MOST_PASSES or not self.is_alone(call):
            return ""
        rows, self.makes = count_drawn(call), 3 * self.passes
        parts = _count_parts(rows, self.passes) if rows else 0
        return f"{rows} samples whole and in {parts} parts" if parts > 1 else ""

    def applies(self, plain: Report) -> bool:
        """Say whether no shape of the step has to be compiled for it."""
        return not plain["compiled"]

    def follow(self, call: ModuleCall, way_out: Exit) -> PartsWitness:
        """Return one that follows the gradients through both windows."""
        rows = count_drawn(call)
        return _WindowsWitness(call.recorder, way_out, call.module, rows, self.passes)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Tell by what one batch weighs the parts, where not all alike."""
        apart, weights = edited["apart"], edited["weights"]
        if not math.isfinite(apart):
            return Contrast(void="there is no finite gradient")
        near = _NEAR * plain["rounding"] / _FINE
        if apart > near and edited["untold"] > _UNTOLD * apart:
            return Contrast(void="the samples of a batch depend on each other")
        if apart > near and not _are_shares(weights):
            return Contrast(void="the loss is no mean over samples or places, and no sum of them")
        told = weights if apart > near else [1.0] * len(weights)
        return Contrast(apart, float(self.passes), (edited["by"], *told))


class _WindowsWitness(PartsWitness):
    """Follows what each pass adds to gradients: in a window of one batch, and in one of parts."""

    def __init__(
        self, recorder: "Recorder", way_out: Exit, module: nn.Module, rows: int, passes: int
    ) -> None:
        super().__init__(recorder, way_out, module, rows)
        self._passes, self._count = passes, _count_parts(rows, passes)
        self._windows: list[_StepGradients] = [
            _StepGradients()
        ]  # that which was begun, the whole, the parts
        self._rewinds: Rewound | None = None  # where no loader serves the batch
        self._by = 1.0
        register_optimizer_step_pre_hook(lambda *_: self._on_step())

    @property
    def part(self) -> slice:
        """The rows that are served or taken now."""
        window = self._windows[-1]
        if len(self._windows) < _WINDOWS:
            return slice(0, self.drawn)
        place = (window.served - 1 if self._rewinds is None else len(window.added)) % self._count
        size = self.drawn // self._count
        return slice(place * size, (place + 1) * size)

    def serve(self, batch: Any) -> Any:
        """Return what of a batch comes next."""
        self._windows[-1].served += 1
        self._before = read_streams_at()
        return cut(batch, self.part, self.drawn, self.way_out.void)

    def begin_with_steps(self) -> None:
        """Rewind with each step, where no loader serves the batch."""
        self._rewinds = Rewound(*variables())

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down how much the model is given first in each pass."""
        window = self._windows[-1]
        if len(window.given) == len(window.added):
            window.given.append(sum(tensor.numel() for tensor in tensors_in(inputs)))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down what the loss is multiplied by, and what was there before a window's first."""
        self._by = last_factor(loss)
        if len(self._windows) > 1 and not self._windows[-1].added:
            self._windows[-1].begin(sketch(self._held()))

    def after_backward(self, loss: torch.Tensor) -> None:
        """Take down what has been added to the gradients."""
        if len(self._windows) > 1:
            if self._before != read_streams_at():
                self.way_out.void("random numbers are drawn")
            self._windows[-1].add(sketch(self._held()))

    def _on_step(self) -> None:
        """Begin the next window, or report."""
        if len(self._windows) == _WINDOWS:
            self._report(*self._windows[1:])
        if self._rewinds is not None:
            self._rewinds.put_back()
        self._windows.append(_StepGradients())
        self.recorder.patches.watching = True
        self._before = read_streams_at()

    def _report(self, whole: "_StepGradients", parts: "_StepGradients") -> None:
        """Hold both windows against each other."""
        same = np.stack(whole.added or [np.zeros(1)])
        size = float(np.linalg.norm(same[0]))
        if not len(whole.added) == len(parts.added) == self._passes:
            self.way_out.void("not every step has the same number of passes")
        if whole.given != [each * self._count for each in parts.given]:
            self.way_out.void("the parts of a batch do not come in turn")
        if np.linalg.norm(same - same[0], axis=1).max() > _NEAR * size:
            self.way_out.void("the same batch does not have the same gradient")
        rows = np.stack([sum(parts.added[i :: self._count]) for i in range(self._count)])
        by = math.nan if self.drawn == self._passes else self._by
        self.way_out.report(by=by, **_weigh(same.sum(0), rows))


@dataclass(slots=True)
class _StepGradients:
    """
    The passes of one step.

    served: batches, by a loader. given: how many numbers the model was given in each. added: what
    each has added to the gradients.
    """

    served: int = 0
    given: list[int] = field(default_factory=list)
    added: list[Numbers] = field(default_factory=list)
    _held: Numbers = field(default_factory=lambda: np.zeros(1))

    def begin(self, held: Numbers) -> None:
        """Take down the gradients before the first pass: an optimizer may wait for its turn."""
        self._held = held

    def add(self, held: Numbers) -> None:
        """Take down the gradients after a pass."""
        self.added.append(held - self._held)
        self._held = held


def _count_parts(rows: int, passes: int) -> int:
    """Return how many parts a batch has that come as often as each other, of two rows or more."""
    common = math.gcd(rows, passes)
    return max(
        (n for n in range(2, common + 1) if common % n == 0 and rows >= 2 * n), default=common
    )


def _weigh(whole: Numbers, parts: Numbers) -> Report:
    """Return how far a gradient is from that of its parts, and with which weights it is not."""
    size = float(np.linalg.norm(whole)) or math.nan
    weights = np.linalg.lstsq(parts.T, whole, rcond=None)[0]
    untold = float(np.linalg.norm(whole - weights @ parts)) / size
    untold = untold if len(whole) > 2 * len(parts) else math.inf  # any vector is made of so many
    apart = float(np.linalg.norm(whole - parts.sum(0))) / size
    return {"apart": apart, "untold": untold, "weights": list(map(float, weights))}


def _are_shares(weights: list[float]) -> bool:
    """Say whether weights are those of means over uneven numbers, or those of sums."""
    of_sums = max(abs(each / len(weights) - 1) for each in weights) <= _NEAR_WEIGHT
    return of_sums or (min(weights) > 0 and abs(mean(weights) - 1) <= _NEAR_WEIGHT)
