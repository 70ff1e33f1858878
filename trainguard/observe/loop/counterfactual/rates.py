"""Other rates: what the next steps would learn at a hundredth or a hundred times the rate."""

import math
from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainguard.observe.loop.counterfactual.forking import Exit, Report
from trainguard.observe.loop.counterfactual.question import Contrast, ModuleCall, Question
from trainguard.observe.loop.counterfactual.replay import MultipliedRates
from trainguard.observe.loop.counterfactual.witness import Witness, total
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.window import Forward, is_climbed
from trainguard.observe.tools.fingerprint import fingerprint

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_STEPS = 60  # that each child makes
_FEWEST = 12  # that are held against each other, where the training ends before
_RATES = (0.0, 0.01, 0.1, 10.0, 100.0)
_LEARNED = 0.5  # of the loss: whoever has lost so much of it could not have learned far more


class OtherRates(Question):
    """
    The training goes on as it is, then without learning, and at rates far below and above its own.

    All of them are given the same batches, so that what they lose can be held against each other.
    measured: the loss of the last fifth of the steps; reference: what it would be without any
    step; numbers: how many steps were made, and the loss at a hundredth of the rate, a tenth, ten
    and a hundred times it. Where the run's own steps take half of the first loss away, or more,
    that is the reference, and there are no numbers. Void
    where what is learned follows from what was learned (targets of a network, a discriminator's
    inputs), where a loss is below zero, or where no loss function of torch was called.
    """

    name = "other rates"
    makes = _STEPS
    asks = 1
    allowance = 6.0  # six courses of sixty steps: as long as small models take for each
    needs_follow_ups = True

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate  # times the run's own
        self._reports: list[Report] = []
        self._fits = False

    def fits(self, call: ModuleCall) -> str:
        """See whether optimizers make steps, and none that is to raise its loss."""
        windows = [window for window in call.recorder.windows if window.index]
        by_hand = call.recorder.hand.window is not None
        self._fits = bool(windows) and not by_hand and not is_climbed(windows)
        return ""

    def fits_beginning(self) -> str:
        """Ask of the first steps, which later rates have not led astray."""
        return f"{_STEPS} steps" if self._fits else ""

    def state(self) -> dict[str, Any]:
        """Return what later steps have shown."""
        return {"asks": self.asks, "_fits": self._fits}

    def applies(self, plain: Report) -> bool:
        """Ask where a loss function of torch is called."""
        return bool(plain["given"])

    def edit(self, call: ModuleCall, way_out: Exit) -> None:
        """Multiply the rates of all optimizers."""
        if self.rate != 1.0:
            MultipliedRates(self.rate).install()

    def witness(self, call: ModuleCall, way_out: Exit) -> Witness:
        """Return one that takes down the losses of all steps."""
        return _CourseWitness(call.recorder, way_out, call.module, self.rate)

    def compare(self, plain: Report, edited: Report) -> Contrast:
        """Say how far the run's own steps come."""
        losses = edited["losses"]
        if len(losses) < _FEWEST and math.isfinite(losses[-1]):
            return Contrast(void="too few steps were left")
        if min(losses) < 0:
            return Contrast(void="a loss is below zero")
        self._reports = [edited]
        return Contrast(_last(losses, len(losses)), losses[0])

    def follow_ups(self, contrast: Contrast) -> "list[OtherRates]":
        """Try other rates, where the loss is not halved."""
        learns = contrast.measured <= _LEARNED * contrast.reference
        return [] if contrast.void or learns else [OtherRates(rate) for rate in _RATES]

    def refine(
        self, contrast: Contrast, edit: str, plain: Report, edited: Report
    ) -> Contrast | None:
        """See that the same was learned, and that the run's own steps have not done their part."""
        own = self._reports[0]
        steps = min(len(own["losses"]), len(edited["losses"]))
        diverged = math.isinf(max(own["losses"][-1], edited["losses"][-1]))
        if own["given"][:steps] != edited["given"][:steps] or not (steps >= _FEWEST or diverged):
            return Contrast(void="with other steps something else is learned")
        if min(edited["losses"]) < 0:
            return Contrast(void="a loss is below zero")
        self._reports.append(edited)
        if len(self._reports) == 2:
            measured, still = (_last(each["losses"], steps) for each in self._reports)
            if not measured > _LEARNED * still:
                return Contrast(measured, still)
        return None

    def conclude(self, contrast: Contrast) -> Contrast:
        """Hold all of them against each other, over as many steps as all have made."""
        if len(self._reports) <= len(_RATES):
            return contrast
        courses = [each["losses"] for each in self._reports]
        steps = min(len(losses) for losses in courses if not math.isinf(losses[-1]))
        own, still, *others = (_last(losses, steps) for losses in courses)
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
        register_optimizer_step_post_hook(self._on_step)

    def leave(self, error: BaseException | None) -> NoReturn:
        """Report what was seen where the training is over, or has given up what has diverged."""
        self._report(*([math.inf] if error is not None else ()))

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Take down what modules are given that is to be learned from."""
        given = [tensor for tensor in tensors_in(inputs) if not tensor.requires_grad]
        if torch.is_grad_enabled() and given:
            self._marks.append(fingerprint(given))

    def on_loss(
        self, tally: LossCalls, scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Take down the target of a loss function."""
        if value.requires_grad:
            self._marks.append(fingerprint([target]))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take down the loss."""
        self._passes.append(total(self.recorder.scaling.value_of(loss)))

    def after_backward(self, loss: torch.Tensor) -> None:
        """Go on."""

    def _on_step(self, *_: Any) -> None:
        """Begin the next step, or report."""
        self.recorder.patches.watching = True
        if not self._passes:
            return
        loss = sum(self._passes)
        self._losses.append(loss if math.isfinite(loss) else math.inf)
        self._given.append(hash(tuple(self._marks)))
        self._passes, self._marks = [], []
        if len(self._losses) >= _STEPS or math.isinf(self._losses[-1]):
            self._report()

    def _report(self, *more: float) -> NoReturn:
        """End with what was seen."""
        self.way_out.report(losses=[*self._losses, *more], given=self._given, rate=self._rate)


def has_learned_little(losses: Iterable[float]) -> bool:
    """Say whether a run has not halved its loss."""
    known = [loss for loss in losses if math.isfinite(loss)]
    return bool(known) and _last(known, len(known)) > _LEARNED * known[0]


def _last(losses: list[float], steps: int) -> float:
    """Return the mean loss of the last fifth of so many steps; infinite if it got there at all."""
    if math.isinf(losses[-1]):
        return math.inf
    return fmean(losses[steps - max(1, steps // 5) : steps])
