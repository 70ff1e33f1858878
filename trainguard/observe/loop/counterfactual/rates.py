"""Other rates: what the next steps would learn at a hundredth or a hundred times the rate."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainguard.observe.loop.counterfactual.feedback import Feedback
from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.replay import MultipliedRates
from trainguard.observe.loop.counterfactual.witness import Witness, total
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.fingerprint import fingerprint

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

STEPS = 60  # that each child makes
FEWEST = 12  # that are held against each other, where the training ends before
_RATES = (0.0, 0.01, 0.1, 10.0, 100.0)
_DIVERGED = 2.0  # times the first loss: what a script may refuse to go on with
_EPSILON, _LARGE = 1e-8, 1e-4  # that of torch's optimizers, and one that somebody has chosen
_LEARNED = 0.5  # of the loss: whoever has lost so much of it could not have learned far more


class OtherRates(Question):
    """
    The training goes on as it is, then without learning, and at rates far below and above its own.

    Where an optimizer has an epsilon of more than 1e-4, it then goes on at its own rate with 1e-8.

    All of them are given the same batches, so that what they lose can be held against each other.
    measured: the loss of the last fifth of the steps; reference: what it would be without any
    step; numbers: how many steps were made, and the loss at a hundredth of the rate, a tenth, ten
    and a hundred times it, and with a smaller epsilon where that was tried. Where the run's own
    steps take half of the first loss away, or more, that is the reference, and there are no
    numbers. Void where what is learned follows from what was learned (targets of a network, a
    discriminator's inputs), and where a loss is below zero.
    """

    name = "other rates"
    makes = STEPS
    asks = 1
    needs_follow_ups = True

    def __init__(self, rate: float = 1.0, epsilon: float | None = None) -> None:
        self.rate = rate  # times the run's own
        self.epsilon = epsilon  # in place of a larger one
        self._reports: list[Report] = []

    def fits(self, call: ModuleCall) -> str:
        """Ask of the first steps: FirstSteps looks at what they are made with."""
        return f"{STEPS} steps"

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Multiply the rates of all optimizers, or bring their epsilons down."""
        if self.rate != 1.0:
            MultipliedRates(self.rate).install()
        if self.epsilon is not None:
            register_optimizer_step_pre_hook(partial(_lower_epsilons, self.epsilon))

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that takes down the losses of all steps."""
        return _CourseWitness(call.recorder, way_out, call.module, self.rate)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say how far the run's own steps come."""
        losses = edited["losses"]
        if len(losses) < FEWEST and math.isfinite(losses[-1]):
            return Contrast(void="too few steps were made")
        if min(losses) < 0:
            return Contrast(void="a loss is below zero")
        self._reports = [edited]
        return Contrast(mean_end(losses), losses[0])

    def follow_ups(self, contrast: Contrast) -> "list[OtherRates]":
        """Try other rates, where the loss is not halved."""
        halved = contrast.measured <= _LEARNED * contrast.reference
        if contrast.void or halved:
            return []
        rates = [OtherRates(rate) for rate in _RATES]
        is_large = self._reports[0]["epsilon"] > _LARGE
        return [*rates, OtherRates(epsilon=_EPSILON)] if is_large else rates

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """See that the same was learned, and that the run's own steps have not done their part."""
        own = self._reports[0]
        steps = min(len(own["given"]), len(edited["given"]))
        diverged = math.isinf(max(own["losses"][-1], edited["losses"][-1]))
        if not _learn_the_same(own, edited, steps) or not (steps >= FEWEST or diverged):
            return Contrast(void="with other steps something else is learned")
        if min(edited["losses"]) < 0:
            return Contrast(void="a loss is below zero")
        self._reports.append(edited)
        if len(self._reports) == 2:
            measured, still = (mean_end(each["losses"], steps) for each in self._reports)
            if not measured > _LEARNED * still:
                return Contrast(measured, still)
        return None

    def conclude(self, contrast: Contrast) -> Contrast:
        """Hold all of them against each other, over as many steps as all have made."""
        if len(self._reports) <= len(_RATES):
            return contrast
        courses = [each["losses"] for each in self._reports]
        steps = min(len(losses) for losses in courses if not math.isinf(losses[-1]))
        own, still, *others = (mean_end(losses, steps) for losses in courses)
        return Contrast(own, still, (float(steps), *others))

    def is_settled(self, contrast: Contrast) -> bool:
        """One answer is enough."""
        return True


class _CourseWitness(Witness):
    """Reports the losses of many steps, and what they were learned from."""

    def __init__(self, recorder: "Recorder", way_out: Exit, module: nn.Module, rate: float) -> None:
        super().__init__(recorder, way_out, module)
        self._rate = rate
        self._losses: list[float] = []
        self._given: list[int] = []
        self._passes: list[float] = []  # the losses of this step's backward passes
        self._marks: list[int] = []  # fingerprints of what this step was given
        self._begun = self._latest = math.nan  # what loss functions returned
        self._epsilon = 0.0  # the largest one
        self._feedback, self._fed = Feedback(), list[list[int]]()
        self._is_told, self._by_hand = False, False  # whether losses of torch saw the targets
        register_optimizer_step_post_hook(self._on_step)

    def take_over(self) -> None:
        """See, too, what is made of what was learned."""
        super().take_over()
        self._feedback.install()

    def leave(self, error: BaseException | None) -> NoReturn:
        """Report what was seen where the training is over, or has given up what has diverged."""
        if error is None and self._losses:
            self._report()
        if error is None or self._rate <= 1 or self._latest <= _DIVERGED * self._begun:
            super().leave(error)
        self._report(math.inf)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what modules are given that is to be learned from."""
        given = [tensor for tensor in tensors_in(inputs) if not tensor.requires_grad]
        if torch.is_grad_enabled() and given:
            self._marks.append(fingerprint(given))
        self._feedback.after_call(module, output)

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down the target of a loss function."""
        if value.requires_grad:
            self._is_told = True
            self._marks.append(fingerprint([target]))
            self._latest = total(value)
            self._begun = self._latest if math.isnan(self._begun) else self._begun

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self._feedback.before_backward()
        self._passes.append(total(self.recorder.scaling.value_of(loss)))
        self._by_hand |= not self._is_told
        self._is_told = False

    def after_backward(self, loss: torch.Tensor) -> None:
        """Go on."""

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Begin the next step, or report."""
        self.recorder.patches.watching = True
        self._epsilon = max(self._epsilon, *_epsilons(optimizer))
        if not self._passes:
            return
        loss = sum(self._passes)
        self._losses.append(loss if math.isfinite(loss) else math.inf)
        self._given.append(hash(tuple(self._marks)))
        self._fed.append(self._feedback.take())
        self._passes, self._marks = [], []
        if len(self._losses) >= STEPS or math.isinf(self._losses[-1]):
            self._report()

    def _report(self, *more: float) -> NoReturn:
        """End with what was seen."""
        losses = [*self._losses, *more]
        fed = None if self._feedback.refers else self._fed
        self.way_out.report(
            losses=losses,
            given=self._given,
            epsilon=self._epsilon,
            by_hand=self._by_hand,
            fed=fed,
        )


def _learn_the_same(own: Report, edited: Report, steps: int) -> bool:
    """Say whether so many steps learn from the same, as far as that can be seen."""
    if own["given"][:steps] != edited["given"][:steps]:
        return False
    known = None not in (own["fed"], edited["fed"])
    return not own["by_hand"] or (known and own["fed"][:steps] == edited["fed"][:steps])


def _epsilons(optimizer: Optimizer) -> list[float]:
    """Return the epsilons of all groups; zeros where there is none, or several (Adafactor)."""
    known = (group.get("eps") for group in optimizer.param_groups)
    return [each if isinstance(each, float) else 0.0 for each in known]


def _lower_epsilons(epsilon: float, optimizer: Optimizer, *_: Any) -> None:
    """Let no group have a larger epsilon."""
    for group, own in zip(optimizer.param_groups, _epsilons(optimizer), strict=True):
        if own > epsilon:
            group["eps"] = epsilon


def has_halved(losses: Sequence[float]) -> bool:
    """Say whether steps have taken half of the first loss away."""
    return mean_end(losses) <= _LEARNED * losses[0]


def mean_end(losses: Sequence[float], steps: int | None = None) -> float:
    """Return the mean loss of the last fifth of so many steps; infinite if it got there at all."""
    if math.isinf(losses[-1]):
        return math.inf
    end = len(losses) if steps is None else steps
    return fmean(losses[end - max(1, end // 5) : end])
