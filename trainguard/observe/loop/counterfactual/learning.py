"""One batch learned: whether the run's own steps can bring its loss below that of a constant."""

import math
import signal
from time import process_time
from typing import Any

import torch
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall
from trainguard.observe.loop.counterfactual.replay import BatchAgain, LossesWitness
from trainguard.observe.loop.counterfactual.witness import Witness
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.class_counts import (
    are_classes,
    count_classes,
    lose_rates,
)
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.window import gradient_of
from trainguard.observe.tools.fingerprint import fingerprint

_STEPS = 50
_BEATEN = 0.95  # of the constant's loss: what learns one batch by heart ends far below it
# Times the run's own rate, and at last by the signs of gradients alone, as large as it takes: one
# of them learns where the rate was the matter, or a warm-up that has only begun.
_RATES = (10.0, 0.1, 100.0, math.inf)
_SIGNED = 3e-3  # of a step along signs: fifty of them cross the usual size of a weight
_FAR = 3.0  # times the constant's loss: what begins further off may only have a long way to go
_LEAST_ENTROPY = 0.05  # of a constant's loss: below it the targets of the batch are all but alike
_ROOM = 10  # parameters of matrices for each row of targets: fewer cannot learn it by heart
_NUMBERS = {
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
}


class BatchLearned(BatchAgain):
    """
    The loader serves one batch fifty times; where that is not learned, with other rates too.

    measured: the lowest loss at the run's own rates; reference: the loss of the best constant
    prediction; numbers: how many times the own rate learns it (inf: steps along the signs of its
    gradients do), 0 if none does. Void where the loss
    is not that of one function of torch with the same targets each time, where the targets are all
    but alike, or where the model is too small to learn them by heart.
    """

    name = "one batch learned"
    asks = 2
    settled_by = ()
    needs_follow_ups = True

    def fits(self, call: ModuleCall) -> str:
        """Ask where the run's own steps can be made with one batch."""
        return f"one batch, {_STEPS} steps" if super().fits(call) else ""

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Serve one batch, and step along signs where no rate is large enough."""
        super().edit(call, way_out)
        if math.isinf(self.rate):
            register_optimizer_step_pre_hook(_step_along_signs)

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that follows the loss, and knows that of a constant."""
        witness = _LearningWitness(call.recorder, way_out, call.module)
        witness.rate = self.rate
        return self.prepare_witness(witness, call)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say how low the loss of the batch came."""
        if not edited["lowest"] < _FAR * edited["constant"]:
            return Contrast(void="the loss is too far above a constant's for fifty steps")
        learned = edited["lowest"] < _BEATEN * edited["constant"]
        return Contrast(edited["lowest"], edited["constant"], (edited["rate"] if learned else 0.0,))

    def follow_ups(self, contrast: Contrast) -> "list[BatchLearned]":
        """Try other rates, where the run's own does not learn the batch."""
        failed = not contrast.void and contrast.numbers == (0.0,)
        return [BatchLearned(rate) for rate in _RATES] if failed else []

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """Put it down to the rate where another one learns."""
        found = self.compare(plain, edited)
        learns = not found.void and found.numbers != (0.0,)
        return contrast._replace(numbers=found.numbers) if learns else None

    def is_settled(self, contrast: Contrast) -> bool:
        """Once it is learned, all is well."""
        return contrast.numbers == (1.0,)


class _LearningWitness(LossesWitness):
    """Reports how low the loss of one batch comes, and what a constant would lose."""

    rate = 1.0

    def take_over(self) -> None:
        """Look at the clock first."""
        self._lowest, self._constant = math.inf, 0.0
        self._latest: tuple[LossCalls, float | None, int] | None = None
        self._targets = 0
        super().take_over()

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down what a constant loses in the same call."""
        if not value.requires_grad:
            return
        super().on_loss(tally, scores, target, value)
        if len(self.losses) == 1:  # the batch that is served again is the next one
            return
        if len(self.losses) == 2:
            self._check_room(target)
            self._constant = _constant_loss(tally, scores.detach(), target.detach()) or 0.0
            self._targets = fingerprint([target])
        if fingerprint([target]) != self._targets:
            self.way_out.void("the targets of one batch change")

    def before_backward(self, loss: torch.Tensor) -> None:
        """See that the loss is that of the one function that was called."""
        super().before_backward(loss)
        if len(self.losses) == 1:
            return
        found = autograd_graph.multiple(loss)
        alone = len(self.values[-1]) == len(self.losses[-1]) == 1
        if not alone or found is None or float(found[1]) <= 0:
            self.way_out.void("the loss is not that of one loss function of torch")
        if not self._constant > _LEAST_ENTROPY * (found[0][0].function not in _NUMBERS):
            self.way_out.void("a constant loses nothing, or what it loses is not known")
        if math.isfinite(self.values[-1][0]):
            self._lowest = min(self._lowest, self.values[-1][0])

    def after_backward(self, loss: torch.Tensor) -> None:
        """Report once the batch is learned, or enough steps were made."""
        made = len(self.losses)
        if self._lowest < _BEATEN * self._constant or made > _STEPS + 1:
            self.way_out.report(
                lowest=self._lowest,
                constant=self._constant,
                rate=self.rate,
                losses=self.losses,
                values=self.values,
            )
        left = signal.getitimer(signal.ITIMER_PROF)[0]
        if made == 3 and (process_time() - self._began) / made * (_STEPS - made) > left:
            self.way_out.void(f"{_STEPS} steps would take too long")

    def _check_room(self, target: torch.Tensor) -> None:
        """See that the model has a parameter for each of the targets, and more."""
        held = [p for window in self.recorder.windows for p in window.parameters if p.dim() > 1]
        if sum(p.numel() for p in held) < _ROOM * target.numel():
            self.way_out.void("the model is too small to learn a batch by heart")


def _step_along_signs(optimizer: Optimizer, *_: Any) -> None:
    """Move each parameter against the sign of its gradient."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = gradient_of(parameter)
                if gradient is not None and not gradient.is_sparse:
                    parameter.sub_(_SIGNED * gradient.sign())


def _constant_loss(tally: LossCalls, scores: torch.Tensor, target: torch.Tensor) -> float | None:
    """Return the least that a prediction loses which is the same for all samples of a call."""
    if tally.options is None or tally.reduction == "none":
        return None
    if are_classes(tally, target):
        came = count_classes(tally, scores.shape[1 if scores.dim() > 1 else 0], target)
        if came is None:
            return None
        rates = came.double() / came.sum()
        return float(lose_rates(tally, rates[None], came[None].double())[0])
    if tally.function not in _NUMBERS or not target.is_floating_point():
        return None
    mean = target.mean(0, keepdim=True) if target.dim() > 1 else target.mean()
    guess = mean.clamp(1e-6, 1 - 1e-6) if tally.function.startswith("binary") else mean
    guess = guess.logit() if tally.function.endswith("logits") else guess
    call = getattr(functional, tally.function)
    return float(call(guess.expand_as(target).to(target.dtype), target, **tally.options))
