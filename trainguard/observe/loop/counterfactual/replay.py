"""The same batch again: whether the run's own steps lower its loss."""

import copy
import math
import random
import sys
import weakref
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.witness import Witness, total
from trainguard.observe.loop.watch.batches import Batches
from trainguard.observe.loop.watch.loss_calls import LossCalls

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_PAIRS = 8  # steps after which the loss of the batch is looked at again


class BatchAgain(Question):
    """
    The loader serves one batch again and again, at the same random state.

    measured: after how many steps the loss of the batch was higher than before; reference: of how
    many; numbers: the losses. Void where a step has several backward passes, or where the loss goes
    up by intention.
    """

    name = "the same batch again"
    makes = _PAIRS + 2
    settled_by: tuple[str, ...] = ("one batch learned",)

    def fits(self, call: ModuleCall) -> str:
        """Ask where a loader served the latest batch, and one optimizer alone makes steps."""
        recent = call.recorder.watcher(Batches).recent
        stepping = [window for window in call.recorder.windows if window.index]
        alone = len(stepping) == 1 and call.recorder.hand.window is None
        if not recent or recent[-1].iterator() is None or not alone:
            return ""
        optimizer = stepping[0].optimizer() if stepping[0].optimizer is not None else None
        if optimizer is None or any(g.get("maximize") for g in optimizer.param_groups):
            return ""
        return f"one batch, {_PAIRS} steps"

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Let the loader serve its next batch from now on."""
        serve_again(call.recorder.watcher(Batches).recent[-1].iterator)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that follows the loss through several steps."""
        return LossesWitness(call.recorder, way_out, call.module)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Count the steps after which the loss of the batch was higher."""
        losses, values = edited["losses"][1:], edited["values"][1:]
        if any(len(each) != 1 for each in losses) or not math.isfinite(losses[0][0]):
            return Contrast(void="not every step has one backward pass with a finite loss")
        flat = [each[0] for each in losses]
        if not all(values):
            return Contrast(void="no loss function of torch was called")
        both = [_rises(flat), _rises([sum(each) for each in values])]
        return Contrast(float(min(both)), float(len(flat) - 1), tuple(flat))

    def is_settled(self, contrast: Contrast) -> bool:
        """One step that helps is enough."""
        return contrast.measured < contrast.reference


class LossesWitness(Witness):
    """Reports the losses of several steps, and what loss functions returned in them."""

    def __init__(self, recorder: "Recorder", way_out: Exit, module: nn.Module) -> None:
        super().__init__(recorder, way_out, module)
        self.losses: list[list[float]] = [[]]
        self.values: list[list[float]] = [[]]
        register_optimizer_step_post_hook(self._on_step)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down what a loss function returned."""
        if value.requires_grad:
            self.values[-1].append(float(value.detach().double().mean()))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self.losses[-1].append(total(loss))

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report once enough steps were made."""
        if len(self.losses) > _PAIRS + 1:
            self.way_out.report(losses=self.losses, values=self.values)

    def _on_step(self, *_: Any) -> None:
        """Begin the next step; all of them are looked at."""
        self.recorder.patches.watching = True
        self.losses.append([])
        self.values.append([])


def serve_again(chosen: "weakref.ref[Any]") -> None:
    """Let an iterator of a loader serve its next batch for ever, each time at this random state."""
    kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
    advance = kind.__next__
    numpy = sys.modules.get("numpy")
    own, torchs = random.getstate(), torch.default_generator.get_state()
    theirs = numpy.random.get_state() if numpy else None
    kept: list[Any] = []

    @wraps(advance)
    def wrapper(iterator: Any) -> Any:
        """Return the batch, and put the random streams back."""
        if iterator is not chosen():
            return advance(iterator)
        if not kept:
            kept.append(advance(iterator))
        random.setstate(own)
        torch.default_generator.set_state(torchs)
        if numpy is not None:
            numpy.random.set_state(theirs)
        return copy.deepcopy(kept[0])

    kind.__next__ = wrapper


def _rises(values: list[float]) -> int:
    """Count how often a value is higher than the one before; what is not finite is."""
    return sum(b > a or not math.isfinite(b) for a, b in pairwise(values))
